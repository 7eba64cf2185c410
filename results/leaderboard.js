"use strict";
(() => {
  const table = document.getElementById("board"), body = table.tBodies[0], all = [...body.rows];
  const text = document.getElementById("text"), dataset = document.getElementById("dataset");
  const sound = document.getElementById("sound"), count = document.getElementById("count");
  const value = (row, at) => {
    const cell = row.cells[at], number = cell.dataset.value;
    return number === undefined ? cell.textContent.trim().toLowerCase() : number === "" ? null : Number(number);
  };
  const filter = () => {
    const words = text.value.trim().toLowerCase();
    let shown = 0;
    for (const row of all) {
      row.hidden = !(row.cells[0].textContent.toLowerCase().includes(words)
        && (!dataset.value || row.dataset.of === dataset.value) && !(sound.checked && row.dataset.flagged));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${all.length} models`;
  };
  const sort = (heading, at) => {
    const down = heading.getAttribute("aria-sort") !== "descending", sign = down ? -1 : 1;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = (a, b) => {
      const [x, y] = [value(a, at), value(b, at)];
      if (x === null || y === null) return (x === null) - (y === null);  // unknown comes last, either way
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    };
    body.append(...[...body.rows].sort(order));
  };
  [...table.tHead.rows[0].cells].forEach((heading, at) => {
    const button = heading.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => sort(heading, at));
  });
  const box = document.querySelector(".scroll");
  const tellScrolling = () => { box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth; };
  window.addEventListener("resize", tellScrolling);
  tellScrolling();
  for (const field of [text, dataset, sound]) field.addEventListener("input", filter);
  document.getElementById("filters").hidden = false;
  filter();
})();
