// Controls without a name that a screen reader could say, and ids that are there twice.
() => {
  const found = [];
  for (const control of document.querySelectorAll("button, a[href], input:not([type=hidden]), select, textarea")) {
    const label = control.labels && control.labels.length ? control.labels[0].textContent : "";
    const name = control.getAttribute("aria-label") || label || control.textContent || control.title || control.value;
    if (!name.trim()) found.push(control.outerHTML.slice(0, 120));
  }
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`id ${id} twice`);
  return found;
}
