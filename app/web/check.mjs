// Opens the viewer in Chromium as its users do and says, a sentence each, what is wrong with it.
//
//   node check.mjs ADDRESS [FOLDER]
//
// ADDRESS is that of the page with run and key, as `layerscope serve --viewer` says it. FOLDER gets pictures. Exits with 1 where anything is
// wrong. CHROMIUM names the browser, LAYERSCOPE_NODE_MODULES the folder with the packages of fixtures/report/package.json.
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const modules = process.env.LAYERSCOPE_NODE_MODULES ?? join(import.meta.dirname, "../../fixtures/report/node_modules");
const { chromium } = createRequire(import.meta.url)(join(resolve(modules), "playwright-core"));

const [address, folder] = process.argv.slice(2);
if (address === undefined) {
  console.error("usage: node check.mjs ADDRESS [FOLDER]");
  process.exit(2);
}
const faults = [];
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"],
});
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
page.on("console", (message) => {
  if (message.type() === "error") faults.push(`the page says: ${message.text()}`);
});
page.on("pageerror", (error) => faults.push(`the page fails: ${error.message}`));
let received = 0;
page.on("response", async (response) => {
  received += Number(response.headers()["content-length"] ?? 0);
});

/** What the page is marked with. */
const marked = (name) => page.evaluate((name) => document.body.dataset[name], name);
/** Waits until nothing is on its way. */
const ready = () => page.waitForSelector('body[data-viewer="ready"]', { timeout: 60_000, state: "attached" });
/** Takes a picture once two are the same. */
async function picture(name) {
  let [before, now] = [null, await page.screenshot()];
  for (let tries = 0; tries < 40 && (before === null || !before.equals(now)); tries += 1) {
    await page.waitForTimeout(150);
    [before, now] = [now, await page.screenshot()];
  }
  if (folder !== undefined) {
    mkdirSync(folder, { recursive: true });
    const { writeFileSync } = await import("node:fs");
    writeFileSync(join(folder, `${name}.png`), now);
  }
  return now;
}

try {
  const start = Date.now();
  await page.goto(address);
  await ready();
  const first = Date.now() - start;
  const opened = await picture("opened");
  if (page.url().includes("#")) faults.push("the key stays in the address");
  console.log(`first picture after ${first} ms; ${(received / 2 ** 20).toFixed(2)} MiB of files`);
  // The cutoff's line, dragged two layers up; each step takes a frame.
  const cutoff = await marked("cutoff");
  for (const [step, y] of [578, 578, 560, 520, 480, 440, 440].entries()) {
    await page.mouse.move(480, y);
    await page.waitForTimeout(100);
    if (step === 1) await page.mouse.down();
  }
  await page.mouse.up();
  await page.waitForTimeout(100);
  await ready();
  if ((await marked("cutoff")) === cutoff) faults.push(`dragging the cutoff leaves it at ${cutoff}`);
  await picture("dragged");
  // Zoom at the middle.
  await page.mouse.move(640, 400);
  await page.mouse.wheel(0, -400);
  await page.waitForTimeout(300);
  await ready();
  if ((await picture("zoomed")).equals(opened)) faults.push("zooming shows nothing else");
  // Tokens of the server's engine, under the full model and the policy.
  await page.keyboard.press("Control+6");
  await page.waitForTimeout(300);
  await page.mouse.click(500, 90);
  await page.keyboard.type("The capital of France is");
  // Keys of commands count before what is typed in the same frame.
  await page.waitForTimeout(300);
  await page.keyboard.press("Control+Enter");
  await page.waitForFunction(() => Number(document.body.dataset.tokens) >= 8, undefined, { timeout: 60_000 });
  await ready();
  await picture("generated");
  // The view as a file.
  const download = page.waitForEvent("download", { timeout: 30_000 });
  await page.keyboard.press("Control+Shift+E");
  await page.waitForTimeout(300);
  await page.keyboard.press("Enter");
  const name = (await download).suggestedFilename();
  if (!name.endsWith(".svg")) faults.push(`a picture is called ${name}`);
  const problem = await marked("problem");
  if (problem !== "") faults.push(`the viewer says: ${problem}`);
} catch (problem) {
  faults.push(`${problem}`);
  await picture("failed").catch(() => {});
}
await browser.close();
faults.forEach((fault) => console.log(fault));
process.exit(faults.length > 0 ? 1 : 0);
