// Reads with zarrita what standard input asks for: `node reader.mjs OUT FOLDER`, where FOLDER has `node_modules` with zarrita.
// The lines are those of `programs.py`.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [out, folder] = process.argv.slice(2);
const installed = (name) => import(pathToFileURL(join(folder, "node_modules", name)));
const zarr = await installed("zarrita/dist/src/index.js");
const { default: FileSystemStore } = await installed("@zarrita/storage/dist/src/fs.js");

// Node ends the process if a range is longer than any file, which is what zarrita asks for if a shard has no index.
class Store extends FileSystemStore {
  async getRange(key, range) {
    if (range.offset + range.length > Number.MAX_SAFE_INTEGER) throw new RangeError(`no such range in ${key}`);
    return super.getRange(key, range);
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const [number, , path, name] = line.split("\t");
  try {
    const root = zarr.root(new Store(path));
    const array = await zarr.open.v3(root.resolve(name), { kind: "array" });
    const { data, shape } = await zarr.get(array);
    const type = { Uint16Array: "<u2" }[data.constructor.name] ?? data.constructor.name;
    writeFileSync(join(out, number), new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    console.log([number, "reads", `${type} ${shape.join("x")}`].join("\t"));
  } catch (error) {
    console.log([number, "refuses", String(error).split("\n")[0].replaceAll("\t", " ")].join("\t"));
  }
}
