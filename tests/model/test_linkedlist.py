from leasedkeyq.model.linkedlist import DoublyLinkedList, Node


def make(*names: str) -> tuple[DoublyLinkedList[str, int], list[Node[str, int]]]:
    line = DoublyLinkedList[str, int]()
    nodes = [Node(name, number) for number, name in enumerate(names)]
    for node in nodes:
        line.append(node)
    return line, nodes


def order(line: DoublyLinkedList[str, int]) -> str:
    return "".join(node.key for node in line)


def test_a_new_node_is_in_no_list() -> None:
    node = Node("key", 1)
    assert (node.key, node.value, node.prev, node.next) == ("key", 1, None, None)


def test_an_empty_list() -> None:
    line = DoublyLinkedList[str, int]()
    assert len(line) == 0
    assert not line
    assert line.popleft() is None
    assert order(line) == ""


def test_append_and_appendleft() -> None:
    line, _ = make("b", "c")
    line.appendleft(Node("a", 0))
    line.append(Node("d", 0))
    assert order(line) == "abcd"
    assert len(line) == 4
    assert line


def test_popleft_takes_the_front_until_none_is_left() -> None:
    line, nodes = make("a", "b")
    assert line.popleft() is nodes[0]
    assert line.popleft() is nodes[1]
    assert line.popleft() is None
    assert not line


def test_remove_first_middle_last_and_only() -> None:
    line, nodes = make("a", "b", "c", "d")
    line.remove(nodes[1])
    assert order(line) == "acd"
    line.remove(nodes[0])
    assert order(line) == "cd"
    line.remove(nodes[3])
    assert order(line) == "c"
    line.remove(nodes[2])
    assert order(line) == ""
    assert len(line) == 0
    assert all(node.prev is None and node.next is None for node in nodes)


def test_a_removed_node_can_be_added_again() -> None:
    line, nodes = make("a", "b")
    line.remove(nodes[0])
    line.append(nodes[0])
    assert order(line) == "ba"


def test_insert_before() -> None:
    line, nodes = make("a", "c")
    line.insert_before(nodes[1], Node("b", 0))
    line.insert_before(line.tail, Node("d", 0))
    assert order(line) == "abcd"
    assert len(line) == 4
