"""Pictures as PPM files, in plain Python: slow enough to be worth a process."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Picture:
    """Rows of pixels, three bytes each."""

    width: int
    height: int
    pixels: bytes

    @classmethod
    def read(cls, path: Path) -> "Picture":
        """The picture of a binary PPM file without comments.

        Raises:
            ValueError: It is no such file.
        """
        head, size, most, pixels = path.read_bytes().split(b"\n", 3)
        width, height = map(int, size.split())
        if head != b"P6" or most != b"255" or len(pixels) != 3 * width * height:
            raise ValueError(f"{path} is no PPM file with 8 bits for each colour")
        return cls(width, height, pixels)

    def write(self, path: Path) -> None:
        """Write a PPM file. It is there as a whole or not at all, whenever this is ended."""
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_bytes(b"P6\n%d %d\n255\n" % (self.width, self.height) + self.pixels)
        unfinished.replace(path)

    def height_at(self, width: int) -> int:
        """The height of this picture at another width."""
        return max(1, round(self.height * width / self.width))

    def shrunk(self, width: int) -> Iterator[bytes]:
        """The rows of this picture at a smaller width, one after the other."""
        step = self.width / width
        for row in range(self.height_at(width)):
            top, bottom = int(row * step), max(int(row * step) + 1, int((row + 1) * step))
            line = bytearray()
            for column in range(width):
                left = int(column * step)
                right = max(left + 1, int((column + 1) * step))
                line += self._mean(left, right, top, min(bottom, self.height))
            yield bytes(line)

    def _mean(self, left: int, right: int, top: int, bottom: int) -> bytes:
        sums = [0, 0, 0]
        for row in range(top, bottom):
            start = 3 * (row * self.width + left)
            part = self.pixels[start : start + 3 * (right - left)]
            for colour in range(3):
                sums[colour] += sum(part[colour::3])
        number = (right - left) * (bottom - top)
        return bytes(total // number for total in sums)
