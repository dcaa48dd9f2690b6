// Makes the bundle: `npm run build` writes it into the Python package, where the gateway finds it.
//
// One script, one style sheet, the page, an icon, and the licence texts of what is in the script.
// Nothing is fetched here and nothing is fetched by the page: everything came with `npm ci`, by the
// hashes of package-lock.json.

import { build } from "esbuild";
import { copyFile, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
const OUT = process.env.CONSOLE_OUT || join(HERE, "../src/baton/observe/console/static");

/** What ends up in the bundle and is not ours. A package that is missing here fails the build. */
const LICENCES = { uplot: "LICENSE" };

const own = JSON.parse(await readFile(join(HERE, "package.json"), "utf8"));
const unnamed = Object.keys(own.dependencies).filter((name) => !(name in LICENCES));
if (unnamed.length > 0) throw new Error(`no licence text is named for ${unnamed.join(", ")}`);

await rm(OUT, { recursive: true, force: true });
await mkdir(OUT, { recursive: true });
const result = await build({
  absWorkingDir: HERE,
  entryPoints: { console: "src/main.js" },
  outdir: OUT,
  bundle: true,
  format: "esm",
  target: ["es2022"],
  minify: true,
  legalComments: "none", // their texts are in licences.txt, whole
  metafile: true,
  logLevel: "warning",
});
await copyFile(join(HERE, "src/index.html"), join(OUT, "index.html"));
await copyFile(join(HERE, "src/icon.svg"), join(OUT, "icon.svg"));

const texts = [];
for (const [name, file] of Object.entries(LICENCES)) {
  const folder = join(HERE, "node_modules", name);
  const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const text = await readFile(join(folder, file), "utf8");
  texts.push(`${name} ${version} (${license})\n\n${text.trim()}\n`);
}
await writeFile(join(OUT, "licences.txt"), texts.join(`\n${"-".repeat(72)}\n\n`));

for (const [name, { bytes }] of Object.entries(result.metafile.outputs)) {
  console.log(`${name.split("/").pop()}  ${(bytes / 1024).toFixed(0)} KiB`);
}
