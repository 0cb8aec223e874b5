import init from "./layerscope-web.js";

init().catch((problem) => {
  document.getElementById("loading").textContent = `The viewer cannot be loaded: ${problem}`;
});
