// Pages work without this. It reads a page again, but not while somebody types, and filters tables as one types.
"use strict";
const find = document.getElementById("find");
const seconds = Number(document.documentElement.dataset.again);
const busy = () => find !== null && (find === document.activeElement || find.value !== find.defaultValue);
if (seconds) {
  setInterval(() => { if (!busy()) location.reload(); }, 1000 * seconds);
}
if (find !== null) {
  const rows = [...document.querySelectorAll("#tables tbody tr")];
  const shown = document.getElementById("shown");
  const said = shown.textContent;
  const all = Number(shown.dataset.pages) === 1 && find.defaultValue === "";
  find.addEventListener("input", () => {
    if (!all) return;  // the rest is on other pages: Enter asks for it
    const wanted = find.value.trim().toLowerCase();
    let count = 0;
    for (const row of rows) {
      row.hidden = !row.dataset.name.includes(wanted);
      count += row.hidden ? 0 : 1;
    }
    shown.textContent = wanted === "" ? said : `${count} of ${rows.length} shown`;
  });
}
