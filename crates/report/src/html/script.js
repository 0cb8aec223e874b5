// An extra: values of large maps under the pointer. Everything else in this page works without it.
"use strict";
for (const element of document.querySelectorAll("script.hover-data")) {
  const data = JSON.parse(element.textContent);
  const figure = element.closest("figure");
  const drawing = figure.querySelector("svg");
  const readout = figure.querySelector(".readout");
  const bytes = Uint8Array.from(atob(data.values), (character) => character.charCodeAt(0));
  const values = new DataView(bytes.buffer);
  const groups = Math.ceil(data.columns / data.group);
  readout.hidden = false;
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const [left, top, width, height] = data.area;
    const across = ((event.clientX - box.left) / box.width - left) / width;
    const down = ((event.clientY - box.top) / box.height - top) / height;
    if (across < 0 || across >= 1 || down < 0 || down >= 1) {
      return;
    }
    const row = Math.floor(down * data.rows);
    const group = Math.floor((across * data.columns) / data.group);
    const first = group * data.group;
    const last = Math.min(first + data.group, data.columns) - 1;
    const value = values.getFloat32(4 * (row * groups + group), true);
    const [from, to] = [data.start + first, data.start + last];
    const place = first === last ? `${from}` : `${from} to ${to}, largest`;
    const text = data.texts[first] === undefined || first !== last ? "" : ` “${data.texts[first]}”`;
    const shown = Number.isNaN(value) ? "undefined" : `${value.toPrecision(4)} (${data.unit})`;
    readout.textContent = `${data.row} ${data.first + row}, ${data.column} ${place}${text}: ${shown}`;
  });
}
