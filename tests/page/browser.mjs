// Watches a real run in a real browser: a worker dies and comes back, the coordinator is killed and started again, the user saves,
// puts a worker out and stops. Run by .ci/page: node browser.mjs PROGRAM FOLDER [IMAGES]
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync, openSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { createRequire } from "node:module";

const [program, folder, images] = process.argv.slice(2);
const { chromium } = createRequire(join(process.cwd(), "x.js"))("playwright-core");
const LONG = 120_000;

const freePort = () => new Promise(done => {
  const server = createServer().listen(0, "127.0.0.1", () => {
    const { port } = server.address();
    server.close(() => done(port));
  });
});
const sleep = time => new Promise(done => setTimeout(done, time));
const wait = async (what, isSo) => {
  const since = Date.now();
  for (;;) {
    const so = await isSo();
    if (so) return so;
    if (Date.now() - since > LONG) throw new Error("waited in vain: " + what);
    await sleep(50);
  }
};
const claim = (isSo, what) => {
  if (!isSo) throw new Error("not so: " + what);
  console.log("ok: " + what);
};

mkdirSync(folder, { recursive: true });
const state = join(folder, "run1");
const [port, pagePort] = [await freePort(), await freePort()];
const pageAt = `http://127.0.0.1:${pagePort}/`;
const started = [];
const start = (name, args) => {
  const out = openSync(join(folder, name + ".log"), "a");
  const child = spawn(program, args, { cwd: folder, stdio: ["ignore", out, out] });
  child.ended = new Promise(done => child.on("exit", (code, signal) => done({ code, signal })));
  started.push(child);
  return child;
};
// A worker that is stopped hangs for long enough to be seen, before it is put out.
const coordinator = () => start("coordinator", ["coordinate", "--workers", "2:4", "--strategy", "ssgd", "--patience", "8", "--epochs", "4000", "--learning-rate", "0.005",
  "--listen", `127.0.0.1:${port}`, "--state", "run1", "--page", String(pagePort), "--checkpoint-minutes", "60", "--no-report"]);
let joined = 0;
const worker = () => start(`worker-${joined++}`, ["join", `127.0.0.1:${port}`, "--token-file", join(state, "token")]);

let browser;
try {
  let boss = coordinator();
  await wait("the page is up", () => fetch(pageAt + "healthz").then(answer => answer.ok, () => false));
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
  const context = await browser.newContext({ viewport: { width: 1400, height: 1000 } });
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", error => errors.push(String(error)));
  page.on("console", message => {
    // What the browser says while the coordinator is down is no error of the page.
    if (message.type() === "error" && !/ERR_|Failed to load resource/.test(message.text())) errors.push(message.text());
  });
  await page.goto(pageAt);
  const text = id => page.textContent("#" + id);
  const shows = (id, what) => wait(`${id} shows ${what}`, async () => (await text(id)).includes(what));
  const stateOf = id => page.evaluate(id => document.querySelector(`tr[data-worker="${id}"] .pill`)?.textContent, id);
  const members = () => page.evaluate(() => [...document.querySelectorAll("#workers tr:not(.gone)")].length);

  await shows("phase", "waiting for workers");
  claim(true, "before the first worker, the page says what it waits for");
  let crew = [worker(), worker(), worker(), worker()];
  await shows("phase", "training");
  await wait("four members", async () => await members() === 4);
  await wait("a curve is drawn", () => page.evaluate(() => !!document.querySelector("#loss polyline")?.getAttribute("points").includes(" ")));
  claim(/Epoch [\d.]+ of 4000/.test(await text("epochs")), "the page shows progress");

  // A worker dies, and another one comes.
  const killed = Date.now();
  crew[1].kill("SIGKILL");
  await wait("a loss is shown", () => page.evaluate(() => [...document.querySelectorAll("#events .lost")].some(it => it.textContent.includes("training went on after"))));
  claim(true, `the page shows who was lost and how long training stood still (${Date.now() - killed} ms after the kill)`);
  await wait("three members", async () => await members() === 3);
  crew[1] = worker();
  await wait("a fourth member again", async () => await members() === 4);
  await wait("it is said to have joined", () => page.evaluate(() => document.querySelector("#events .joined")?.textContent.includes("joined")));
  claim(true, "the page shows the worker that came back");

  // One is stopped: it hangs, and the others wait for it.
  crew[2].kill("SIGSTOP");
  await wait("one hangs", async () => (await text("answer-hangs")).includes("hang"));
  const hangs = await wait("who hangs", async () => { const it = await text("answer-hangs"); return it.includes("nothing was heard") && it; });
  claim(/^Worker \d+ hangs: nothing was heard of it for .*, and workers .* wait\.$/.test(hangs), "the page says: " + hangs);
  crew[2].kill("SIGCONT");
  await wait("nobody hangs", async () => (await text("answer-hangs")) === "No worker hangs.");

  await page.reload();
  await shows("phase", "training");
  claim((await page.locator("#events li").count()) >= 3, "a reload shows the whole state again");

  // The coordinator is killed and started again: the same tab goes on by itself.
  const before = parseFloat((await text("epochs")).match(/Epoch ([\d.]+)/)[1]);
  boss.kill("SIGKILL");
  await wait("the page says that it is not connected", () => page.isVisible("#offline"));
  boss = coordinator();
  await wait("the page is connected again", async () => !await page.isVisible("#offline"));
  await shows("events", "the coordinator was started again");
  await wait("training goes on", async () => parseFloat((await text("epochs")).match(/Epoch ([\d.]+)/)?.[1] ?? 0) > before);
  await wait("its history is there", async () => (await text("events")).includes("was lost"));
  claim(true, "after a restart of the coordinator the page goes on, with its history");

  // Acting needs the token, which is in a file that only its owner reads.
  const token = readFileSync(join(state, "page-token"), "utf8").trim();
  const act = async (button, given) => {
    await page.click(button);
    if (await page.isVisible("#ask")) {
      if (given && await page.isVisible("#token")) await page.fill("#token", given);
      await page.click("#choices button");
    }
    await wait("an answer", () => page.isVisible("#said"));
    return text("said");
  };
  claim((await act("#save", "0".repeat(32))).startsWith("This is not the token"), "a wrong token is refused");
  await page.waitForTimeout(100);
  const saved = await act("#save", token);
  claim(saved === "A checkpoint is being saved.", "the page saves: " + saved);
  await shows("events", "was saved");
  await shows("tiles", "since the checkpoint");
  claim(!page.url().includes(token) && !(await page.content()).includes(token), "the token is in no address and in no page");
  const victim = await page.evaluate(() => [...document.querySelectorAll("#workers tr:not(.gone)")].at(-1).dataset.worker);
  await page.click(`tr[data-worker="${victim}"] button`);
  await page.click("#choices button:has-text(\"Put out\")");
  await wait("it is put out", async () => ["put out", "lost"].includes(await stateOf(victim)));
  await wait("it has joined again", async () => await members() === 4);
  claim((await text("events")).includes("put out by the user"), "the page puts out a worker, which joins again");

  if (images) await pictures(context, images);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth);
  claim(wide, "nothing is wider than the window at 1400 px");
  await page.setViewportSize({ width: 400, height: 800 });
  await page.waitForTimeout(600);
  claim(await page.evaluate(() => document.documentElement.scrollWidth <= 400), "nothing is wider than the window at 400 px");
  await page.setViewportSize({ width: 1400, height: 1000 });

  await act("#stop", token);
  const { code } = await boss.ended;
  claim(code === 130, "the page stops the run, which ends as after Ctrl-C");
  await wait("the page says so", async () => (await text("offline")).includes("The run has ended"));
  claim(true, "the page keeps the last state and says that the run has ended");
  claim(errors.length === 0, "the browser has found no error " + errors.join("; "));
} finally {
  await browser?.close();
  started.forEach(child => child.exitCode === null && child.kill("SIGKILL"));
}

async function pictures(context, images) {
  mkdirSync(images, { recursive: true });
  for (const scheme of ["light", "dark"]) {
    for (const width of [1400, 400]) {
      const page = await context.newPage();
      await page.emulateMedia({ colorScheme: scheme });
      await page.setViewportSize({ width, height: width === 400 ? 860 : 900 });
      await page.goto(pageAt);
      await wait("it is drawn", () => page.evaluate(() => document.querySelectorAll("#workers tr").length > 0));
      await page.waitForTimeout(1200);
      await page.screenshot({ path: join(images, `page-${width}-${scheme}.png`), fullPage: true });
      await page.close();
    }
  }
  writeFileSync(join(folder, "pictures"), "made");
}
