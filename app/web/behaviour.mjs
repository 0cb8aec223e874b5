// What users do in the viewer of a browser, and what comes of it, in Chromium: those of the viewer's own tests of behaviour that a page can
// do, through the elements that it shows to screen readers.
//
//   LAYERSCOPE_VIEWER=http://127.0.0.1:8000/viewer/ LAYERSCOPE_API_KEY=… LAYERSCOPE_RUN=RUN LAYERSCOPE_SECOND_RUN=RUN node --test behaviour.mjs
//
// The server is `layerscope serve layerscope-tiny --viewer`; both runs are of its model (`layerscope demo`). LAYERSCOPE_CUTOFF is the first
// run's recommendation; LAYERSCOPE_PICTURES names a folder that gets a picture after each test. CHROMIUM names the browser,
// LAYERSCOPE_NODE_MODULES the folder with the packages of fixtures/report/package.json.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, afterEach, before, beforeEach, test } from "node:test";

const { LAYERSCOPE_VIEWER: viewer, LAYERSCOPE_API_KEY: key, LAYERSCOPE_RUN: run, LAYERSCOPE_SECOND_RUN: second } = process.env;
const { LAYERSCOPE_CUTOFF: recommended, LAYERSCOPE_PICTURES: pictures } = process.env;
assert(viewer && key && run && second, "say which viewer, key and runs; see the top of this file");
const modules = process.env.LAYERSCOPE_NODE_MODULES ?? join(import.meta.dirname, "../../fixtures/report/node_modules");
const { chromium } = createRequire(import.meta.url)(join(resolve(modules), "playwright-core"));

const PROMPT =
  "Facts: The song of Belelland is Solelbe. The lake of Belelland is Mundanra.\nQuestion: What is the lake of Belelland?\nAnswer:";
const VIEWS = ["Map", "Reading", "Pattern", "Curves", "Frontier", "Heads", "Patching", "Compare", "Generate", "Record", "Adapt"];

let browser, context, page;
let said = [];
const scratch = mkdtempSync(join(tmpdir(), "layerscope-"));

before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"],
  });
});
after(async () => {
  await browser?.close();
  rmSync(scratch, { recursive: true });
});
beforeEach(async () => {
  context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  page = await context.newPage();
  page.setDefaultTimeout(30_000);
  said = [];
  page.on("console", (message) => message.type() === "error" && said.push(message.text()));
  page.on("pageerror", (error) => said.push(error.message));
});
afterEach(async (of) => {
  if (pictures !== undefined) {
    mkdirSync(pictures, { recursive: true });
    await page.screenshot({ path: join(pictures, `${of.name.replaceAll(/\W+/g, "-")}.png`) });
  }
  await context.close();
  assert.deepEqual(said, [], "the page says errors");
});

/** What the page is marked with. */
const marked = (name) => page.evaluate((name) => document.body.dataset[name], name);
/** Waits until nothing is on its way, and what has come is drawn. */
async function ready() {
  await frames(2);
  await page.waitForSelector('body[data-viewer="ready"]', { timeout: 120_000, state: "attached" });
  await frames(3);
}
/** Waits so many of the page's frames. */
const frames = (count) =>
  page.evaluate(
    (count) =>
      new Promise((done) => {
        const next = (left) => (left === 0 ? done() : requestAnimationFrame(() => next(left - 1)));
        next(count);
      }),
    count,
  );

/** Opens the viewer on a run, at a view, with its elements. */
async function open(said = { run }) {
  await page.goto(`${viewer}?${new URLSearchParams(said)}#key=${key}`);
  await ready();
  await page.getByRole("button", { name: "Turn on screen reader support" }).dispatchEvent("click");
  await page.locator("#elements > div").first().waitFor({ state: "attached" });
  await ready();
}
/** Elements of the viewer, by role and name. */
const role = (role, name) => page.locator("#elements").getByRole(role, { name, exact: true });
/** Those whose name has a part. */
const having = (part) => page.locator(`#elements [aria-label*="${part}"]`);
/** Text that is shown. */
const text = (part) => page.locator("#elements").getByText(part);
const there = (element) => element.first().waitFor({ state: "attached" });
const gone = (element) => element.first().waitFor({ state: "detached" });

/** A place in an element, as shares of its width and height. */
async function place(element, across = 0.5, down = 0.5) {
  const box = await element.boundingBox();
  assert(box !== null, "it is not on screen");
  return [box.x + across * box.width, box.y + down * box.height];
}
async function press([x, y], modifiers = []) {
  await page.mouse.move(x, y);
  await frames(2);
  for (const modifier of modifiers) await page.keyboard.down(modifier);
  await page.mouse.down();
  await frames(1);
  await page.mouse.up();
  for (const modifier of modifiers) await page.keyboard.up(modifier);
  await frames(3);
}
const click = async (element) => {
  await there(element);
  await press(await place(element));
};
async function keys(...pressed) {
  for (const one of pressed) {
    await page.keyboard.press(one);
    await frames(3);
  }
}
async function show(view) {
  await click(role("button", view).first());
  await ready();
  assert.equal(await role("button", view).first().getAttribute("aria-pressed"), "true", view);
}
/** Replaces the text of a field. */
async function fill(name, text) {
  await click(role("textbox", name));
  await keys("Control+a");
  for (const [index, line] of text.split("\n").entries()) {
    if (index > 0) await keys("Enter");
    await page.keyboard.insertText(line);
    await frames(2);
  }
  await frames(2);
}
/** Loads the embedded model, in a view that needs one. */
async function load() {
  await click(role("button", "Open a model …"));
  await click(role("link", "layerscope-tiny"));
  await ready();
}
/** What an export gives, as the browser saves it. */
async function exported(shortcut, name) {
  const downloading = page.waitForEvent("download");
  await keys(shortcut);
  await click(role("button", "Export").last());
  const download = await downloading;
  assert.match(download.suggestedFilename(), name);
  return readFileSync(await download.path());
}
const nothingFailed = async () => assert.equal(await marked("problem"), "");
/** Waits until all sides are generated. */
async function generated() {
  await page.waitForFunction(() => Number(document.body.dataset.tokens) >= 8, undefined, { timeout: 60_000 });
  await ready();
  await nothingFailed();
}

test("the first picture comes without a click, and the key does not stay in the address", async () => {
  let received = 0;
  page.on("response", (response) => (received += Number(response.headers()["content-length"] ?? 0)));
  const start = Date.now();
  await page.goto(`${viewer}?${new URLSearchParams({ run })}#key=${key}`);
  await page.waitForSelector('body[data-viewer="ready"]', { timeout: 60_000, state: "attached" });
  console.log(`first picture after ${Date.now() - start} ms; ${(received / 2 ** 20).toFixed(2)} MiB of files`);
  assert(!page.url().includes("#"));
  assert.equal(await page.locator("#elements > div").count(), 0, "elements cost nothing until they are asked for");
});

test("a run opens at its recommendation", async () => {
  await open();
  await there(role("button", "The marker is there"));
  if (recommended !== undefined) assert.equal(await marked("cutoff"), recommended);
});

test("bad files get a sentence and the run stays open", async () => {
  await open();
  const damaged = join(scratch, "damaged");
  mkdirSync(damaged);
  writeFileSync(join(damaged, "manifest.json"), "{");
  writeFileSync(join(scratch, "notes.txt"), "hello");
  for (const path of [damaged, join(scratch, "notes.txt"), join(scratch, "absent")]) {
    await keys("Control+o");
    await fill(/^Path/, path);
    await click(role("button", "Open").last());
    await ready();
    assert((await marked("problem")).includes(path.split("/").at(-1)), await marked("problem"));
    await click(role("button", "Dismiss").first());
  }
  await nothingFailed();
  await there(role("button", "The marker is there"));
});

test("the cutoff is dragged, moved with keys and put back", async () => {
  await open();
  const start = Number(await marked("cutoff"));
  const [x, y] = await place(having("Cutoff of").first());
  const map = await having("Map: ").first().boundingBox();
  const row = map.height / 8;
  await page.mouse.move(x, y);
  await frames(2);
  await page.mouse.down();
  for (const rows of [0.5, 1, 1.5, 2]) {
    await page.mouse.move(x, y - rows * row);
    await frames(2);
  }
  await page.mouse.up();
  await ready();
  assert.equal(Number(await marked("cutoff")), start - 2);
  await there(text(`KL at cutoff ${start - 2}: `));
  await click(role("button", "Put the marker there"));
  assert.equal(Number(await marked("cutoff")), start);
  await keys("[");
  assert.equal(Number(await marked("cutoff")), start - 1);
  await keys("]");
  assert.equal(Number(await marked("cutoff")), start);
  // Undo reverts the whole drag.
  await keys("Control+z", "Control+z", "Control+z");
  assert.equal(Number(await marked("cutoff")), start - 2);
  await keys("Control+z");
  assert.equal(Number(await marked("cutoff")), start);
});

test("a selection shows in every view", async () => {
  await open();
  await press(await place(having("Map: ").first(), 0.3, 2.5 / 8));
  await show("Reading");
  await there(text("layer 2"));
  await show("Heads");
  await press(await place(having("Head grid").first(), 1.5 / 4, 4.5 / 8));
  await show("Pattern");
  await there(having("Pattern: layer 4, head 1"));
  await keys("Escape");
});

test("figures are there as a table and as files", async () => {
  await open();
  await press(await place(having("Map: ").first(), 0.5, 0.9));
  await keys("Escape", "t");
  await there(text("layer 3"));
  await keys("t");
  assert.match((await exported("Control+Shift+C", /\.csv$/)).toString(), /^position,token,layer 0 \(share\)/);
  assert((await exported("Control+Shift+E", /\.svg$/)).toString().includes("prompt token (position)"));
  const png = await exported("Control+e", /\.png$/);
  assert.deepEqual([...png.subarray(1, 4)], [..."PNG"].map((letter) => letter.charCodeAt(0)));
  await nothingFailed();
});

test("the run is exported as a report", async () => {
  await open();
  const html = (await exported("Control+Shift+R", /\.html$/)).toString();
  assert(html.includes("<!DOCTYPE html>") && html.includes("of 8 layers"));
  await nothingFailed();
});

test("the palette and the help sheet", async () => {
  await open();
  await keys("Control+k");
  await there(role("textbox", "Commands"));
  await page.keyboard.insertText("show frontier");
  await frames(5);
  await keys("Enter");
  await ready();
  assert.equal(await role("button", "Frontier").first().getAttribute("aria-pressed"), "true");
  await keys("F1");
  await there(text("Raise the cutoff by one layer"));
  await click(role("button", "Close").first());
  await gone(text("Raise the cutoff by one layer"));
});

test("the map zooms and shows steps", async () => {
  await open();
  const whole = await page.screenshot();
  const [x, y] = await place(having("Map: ").first());
  await page.mouse.move(x, y);
  await page.mouse.wheel(0, -400);
  await ready();
  assert(!(await page.screenshot()).equals(whole), "zooming shows nothing else");
  await click(role("button", "Decode steps"));
  await ready();
  await there(having("Map: Prompt mass, 8 layers by"));
});

test("a pattern is computed, zoomed and exported", async () => {
  await open();
  await show("Pattern");
  await there(text("strongest positions only"));
  await click(role("button", "Whole text"));
  await click(role("button", "Compute the whole text"));
  await ready();
  await gone(text("strongest positions only"));
  const svg = (await exported("Control+Shift+E", /\.svg$/)).toString();
  for (const part of ["Attention pattern, layer", "share of attention", "key (position)"]) assert(svg.includes(part), part);
  await click(role("button", "All layers"));
  await ready();
  await there(having("Small patterns: 32 heads"));
  await nothingFailed();
});

test("single heads are read from the model", async () => {
  await open();
  await show("Heads");
  await press(await place(having("Head grid").first(), 0.5 / 4, 3.5 / 8));
  await show("Reading");
  await click(role("button", "Read these heads and steps"));
  await ready();
  await nothingFailed();
  await there(text("1 heads, all steps"));
});

test("a generated token lights what it reads", async () => {
  await open();
  await show("Reading");
  await there(text("All generated tokens"));
  // The last line of the prompt, and then the generated text.
  await there(text(/^Answer:/));
  const answer = await text(/^Answer:/).first().boundingBox();
  const lines = await text(/^ ?The lake of/).all();
  const boxes = await Promise.all(lines.map((line) => line.boundingBox()));
  const below = boxes.find((box) => box.y > answer.y);
  assert(below !== undefined, "there is a generated line");
  await page.mouse.move(below.x + 20, below.y + below.height / 2);
  await ready();
  await there(text("Reads most"));
  await page.mouse.move(answer.x + 20, answer.y + answer.height / 2);
  await ready();
  await there(text("Read most by"));
});

test("both sides are generated one after the other", async () => {
  await open({ run, view: "generate" });
  await fill("Prompt", PROMPT);
  await keys("Control+Enter");
  await generated();
  await there(text(/^Generated, full:/));
  await there(text(/^Generated, speed:/));
});

test("another policy is chosen", async () => {
  await open({ run, view: "generate" });
  await fill("Prompt", PROMPT);
  await click(role("combobox", "Policy: speed"));
  await click(role("button", "pop"));
  await there(role("combobox", "Policy: pop"));
  await click(role("button", "Generate").last());
  await generated();
  await there(text(/^Generated, pop:/));
});

test("prompts typed are recorded on the server and the run opens; a pair of them is patched", async () => {
  await open();
  await show("Record");
  await load();
  const folder = join(scratch, "recorded");
  await fill(
    "Prompts to record",
    "Anna has a red box. Who has the red box?\n---\nCarl has a red box. Who has the red box?\n---\nQuestion: one?\nAnswer:",
  );
  await fill("Run folder", folder);
  await click(role("button", "Record").last());
  await page.waitForFunction(() => document.body.dataset.viewer === "waiting");
  await ready();
  await nothingFailed();
  assert.equal(JSON.parse(readFileSync(join(folder, "manifest.json"), "utf8")).prompts.done.length, 3);
  await there(text("3 prompts"));
  await show("Patching");
  await fill("Answer", "A");
  await fill("Wrong answer", "C");
  await click(role("button", "Patch"));
  await ready();
  await nothingFailed();
  await there(having("Map of patches: "));
});

test("selected tokens vanish from each layer on", async () => {
  await open({ run: join(scratch, "recorded"), view: "reading" });
  const line = text("Anna has a red box").first();
  await there(line);
  await press(await place(line, 0.1));
  await press(await place(line, 0.3), ["Shift"]);
  await click(role("button", "From which layer may these vanish?"));
  await ready();
  await nothingFailed();
  await there(having("Chart: Span removed from this layer on"));
});

test("two runs are compared", async () => {
  await open();
  await show("Compare");
  await click(role("button", "Compare with another run …"));
  await fill(/^Run folder/, second);
  await click(role("button", "Compare").last());
  await ready();
  await nothingFailed();
  for (const chart of ["Frontier, anchor bos", "Frontier, difference", "Knockout"]) await there(having(`Chart: ${chart}`));
  await click(role("button", "Close the second run"));
  await gone(having("Chart: Frontier, difference"));
});

test("an adapter is trained on the server and stopped", async () => {
  await open();
  await show("Adapt");
  await load();
  const prompts = join(scratch, "prompts.jsonl");
  const lessons = readFileSync(join(import.meta.dirname, "../../fixtures/tiny/adapt.jsonl"), "utf8");
  writeFileSync(prompts, `${lessons.split("\n").slice(0, 6).join("\n")}\n`);
  await fill("Prompts", prompts);
  await fill("Adapter’s folder", join(scratch, "taught"));
  await click(role("button", "Train"));
  await page.waitForFunction(() => document.body.dataset.viewer === "waiting");
  await page.waitForTimeout(3_000);
  await click(role("button", "Stop"));
  await ready();
  await nothingFailed();
  readFileSync(join(scratch, "taught/adapter_model.safetensors"));
});

test("clicks of a screen reader reach widgets", async () => {
  await open();
  await role("button", "Frontier").first().dispatchEvent("click");
  await ready();
  assert.equal(await role("button", "Frontier").first().getAttribute("aria-pressed"), "true");
  await role("button", "Generate").first().dispatchEvent("click");
  await ready();
  await role("textbox", "Prompt").dispatchEvent("click");
  await frames(3);
  await page.keyboard.insertText("The lake");
  await there(page.locator('#elements [role="textbox"]', { hasText: "The lake" }));
});

test("what is shown stays when the connection breaks, and it is made again", async () => {
  const sockets = [];
  await page.routeWebSocket(/\/viewer\/engine/, (socket) => {
    socket.connectToServer();
    sockets.push(socket);
  });
  await open();
  await sockets[0].close();
  await there(role("button", "Reconnect"));
  await there(having("Map: "));
  await click(role("button", "Reconnect"));
  await gone(role("button", "Reconnect"));
  assert.equal(sockets.length, 2);
  await show("Reading");
  await click(role("button", "knowledge-2").or(having("knowledge-2")).first());
  await ready();
  await nothingFailed();
});

test("nothing is without a name", async () => {
  await open();
  for (const view of VIEWS) {
    await show(view);
    const nameless = page.locator("#elements").locator(
      '[role="button"]:not([aria-label]), [role="checkbox"]:not([aria-label]), [role="combobox"]:not([aria-label]), [role="slider"]:not([aria-label])',
    );
    const found = await nameless.evaluateAll((elements) => elements.map((element) => element.outerHTML));
    assert.deepEqual(found, [], view);
  }
});
