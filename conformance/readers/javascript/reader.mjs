// A reader in JavaScript: `node reader.mjs FOLDER ARRAY OUT.npy`, or `node reader.mjs --batch`.
//
// zarrita reads the array. What it does not know is added here: a store that joins the parts of a chunk and checks the
// document, and the codecs pad, offset and packbits. The codecs crc32c and bytes of zarrita do not check what they
// decode, so they are replaced.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import * as zarr from "zarrita";

class Unreadable extends Error {
  constructor(name, message) {
    super(message);
    this.className = name;
  }
}

function require(condition, name, found = "") {
  if (!condition) throw new Unreadable(name, typeof found === "string" ? found : JSON.stringify(found));
}

// --- codecs -----------------------------------------------------------------------------------------------------------

const isSize = (value) => Number.isInteger(value) && value >= 0;
const isBase64 = (value) => /^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(value);
const isBit = (value) => value === null || (isSize(value) && value < 64);

function requireMembers(found, members, required) {
  const known = Object.keys(found).every((name) => name in members && members[name](found[name]));
  require(known && required.every((name) => name in found), "bad-configuration", found);
}

// Decodes the codecs whose encoded form is longer by a fixed number of bytes.
function skipPadding(bytes, nbytes, isAtEnd) {
  require(bytes.length >= nbytes, "bad-data", "shorter than its padding");
  return isAtEnd ? bytes.slice(0, bytes.length - nbytes) : bytes.slice(nbytes);
}

function crc32c(bytes) {
  let remainder = 0xffffffff;
  for (const byte of bytes) {
    remainder ^= byte;
    for (let bit = 0; bit < 8; bit++) remainder = (remainder >>> 1) ^ (remainder & 1 ? 0x82f63b78 : 0);
  }
  return (remainder ^ 0xffffffff) >>> 0;
}

function fixedSize(decode, added) {
  return { kind: "bytes_to_bytes", decode, computeEncodedSize: (size) => size + added };
}

const bytesToBytes = {
  pad(configuration) {
    const isLocation = (value) => value === "start" || value === "end";
    requireMembers(configuration, { location: isLocation, nbytes: isSize, padding: isBase64 }, ["location", "nbytes"]);
    const { location, nbytes, padding } = configuration;
    require(padding === undefined || atob(padding).length === nbytes, "bad-configuration", configuration);
    return fixedSize((bytes) => skipPadding(bytes, nbytes, location === "end"), nbytes);
  },
  offset(configuration) {
    requireMembers(configuration, { offset: isSize, prefix: isBase64 }, ["offset"]);
    const { offset, prefix } = configuration;
    require(prefix === undefined || atob(prefix).length === offset, "bad-configuration", configuration);
    return fixedSize((bytes) => skipPadding(bytes, offset, false), offset);
  },
  crc32c() {
    const decode = (bytes) => {
      const body = skipPadding(bytes, 4, true);
      const stored = new DataView(bytes.buffer, bytes.byteOffset + body.length, 4).getUint32(0, true);
      require(stored === crc32c(body), "bad-checksum");
      return body;
    };
    return fixedSize(decode, 4);
  },
};

const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
  uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, float32: Float32Array, float64: Float64Array,
};

function strides(shape) {
  return shape.map((_, axis) => shape.slice(axis + 1).reduce((a, b) => a * b, 1));
}

function packbits(configuration, { dataType, shape }) {
  const isPlace = (value) => ["none", "first_byte", "last_byte"].includes(value);
  requireMembers(configuration, { padding_encoding: isPlace, first_bit: isBit, last_bit: isBit }, []);
  const width = dataType === "bool" ? 1 : ARRAYS[dataType].BYTES_PER_ELEMENT * 8;
  const first = configuration.first_bit ?? 0;
  const kept = (configuration.last_bit ?? width - 1) - first + 1;
  require(kept > 0 && first + kept <= width, "bad-configuration", configuration);
  const count = shape.reduce((a, b) => a * b, 1);
  const nbytes = Math.ceil((count * kept) / 8);
  const place = configuration.padding_encoding ?? "none";
  const computeEncodedSize = () => nbytes + (place === "none" ? 0 : 1);
  const decode = (bytes) => {
    require(bytes.length === computeEncodedSize(), "bad-data", `${bytes.length} bytes`);
    const unused = place === "first_byte" ? bytes[0] : bytes.at(-1);
    require(place === "none" || unused === nbytes * 8 - count * kept, "bad-data", "another number of unused bits");
    const packed = place === "first_byte" ? bytes.slice(1) : bytes;
    const patterns = new DataView(new ArrayBuffer((count * Math.max(width, 8)) / 8));
    const itemsize = Math.max(width, 8) / 8;
    const bitAt = (at) => (packed[at >> 3] >> (at & 7)) & 1;
    for (let element = 0; element < count; element++) {
      for (let bit = first; bit < width; bit++) {
        const from = bit - first;
        // Above the stored bits, a signed number repeats the highest of them.
        const isStored = from < kept;
        if (!isStored && !dataType.startsWith("int")) break;
        const at = element * itemsize + (bit >> 3);
        const value = bitAt(element * kept + (isStored ? from : kept - 1));
        patterns.setUint8(at, patterns.getUint8(at) | (value << (bit & 7)));
      }
    }
    return toChunk(new Uint8Array(patterns.buffer), dataType, shape);
  };
  return { kind: "array_to_bytes", decode, computeEncodedSize };
}

function bytesCodec(configuration, { dataType, shape }) {
  const itemsize = ARRAYS[dataType].BYTES_PER_ELEMENT;
  const nbytes = shape.reduce((a, b) => a * b, 1) * itemsize;
  const decode = (bytes) => {
    require(bytes.length === nbytes, "bad-data", `${bytes.length} bytes in place of ${nbytes}`);
    const copy = bytes.slice();
    if (configuration.endian === "big") {
      for (let at = 0; at < nbytes; at += itemsize) copy.subarray(at, at + itemsize).reverse();
    }
    return toChunk(copy, dataType, shape);
  };
  return { kind: "array_to_bytes", decode, computeEncodedSize: (size) => size };
}

// The array of booleans of zarrita has its own class, which zarrita exports under this name.
function toChunk(bytes, dataType, shape) {
  const View = dataType === "bool" ? zarr.BoolArray : ARRAYS[dataType];
  return { data: new View(bytes.buffer), shape, stride: strides(shape) };
}

for (const [name, make] of Object.entries({ ...bytesToBytes, packbits, bytes: bytesCodec })) {
  zarr.registry.set(name, () => ({ fromConfig: (configuration, meta) => make(configuration ?? {}, meta) }));
}

// --- documents --------------------------------------------------------------------------------------------------------

const KNOWN = new Set([
  "zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs",
  "attributes", "dimension_names", "storage_transformers",
]);
const SUFFIX = /^(?![0-9])(?!(\.[0-9]+)+$)(?!.*\.\.)(?!.*#[0-9]+$)(?!.*[. ]$)[^/\\\x00-\x1f\x7f]*$/;
const TO_BYTES = new Set(["bytes", "packbits", "sharding_indexed"]);

function partsOf(document) {
  for (const [name, member] of Object.entries(document)) {
    const isMark = name === "parts_store" && Object.keys(member).sort().join() === "must_understand,name";
    require(KNOWN.has(name) || isMark || member?.must_understand === false, "unknown-extension", name);
  }
  const transformers = document.storage_transformers ?? [];
  if (transformers.length === 0) return [{ key_suffix: "" }];
  require(transformers.length === 1 && transformers[0].name === "concat-parts", "unknown-transformer", transformers);
  const parts = transformers[0].configuration?.parts;
  require(Array.isArray(parts) && parts.length > 0, "bad-configuration", transformers);
  const isSuffix = (value) => typeof value === "string" && SUFFIX.test(value);
  for (const part of parts) requireMembers(part, { key_suffix: isSuffix, size: isSize }, ["key_suffix"]);
  require(new Set(parts.map((part) => part.key_suffix)).size === parts.length, "bad-configuration", parts);
  return parts;
}

// Adds what the examples of the specifications leave out, and checks codecs before any chunk is read.
function complete(codecs, meta) {
  const all = codecs.some(({ name }) => TO_BYTES.has(name))
    ? codecs
    : [{ name: "bytes", configuration: { endian: "little" } }, ...codecs];
  return all.map(({ name, configuration = {} }) => {
    require(zarr.registry.has(name) || name === "sharding_indexed", "unknown-extension", name);
    if (name in bytesToBytes) bytesToBytes[name](configuration);
    if (name === "packbits") packbits(configuration, meta);
    if (name !== "sharding_indexed") return { name, configuration };
    return { name, configuration: { ...configuration, codecs: complete(configuration.codecs, meta) } };
  });
}

// --- the store --------------------------------------------------------------------------------------------------------

function readFile(path) {
  try {
    return new Uint8Array(readFileSync(path));
  } catch (error) {
    if (error.code === "ENOENT" || error.code === "ENOTDIR" || error.code === "EISDIR") return undefined;
    throw error;
  }
}

// A store with one array, whose chunks are joined from their parts. zarrita gets a document without extensions.
class PartsStore {
  constructor(folder) {
    this.folder = folder;
    this.stored = JSON.parse(readFileSync(join(folder, "zarr.json"), "utf8"));
    this.parts = partsOf(this.stored);
    const { parts } = this;
    this.anchor =
      parts.find((part) => part.key_suffix === "") ?? parts.find((part) => part.size === undefined) ?? parts[0];
    const codecs = complete(this.stored.codecs, { dataType: this.stored.data_type, shape: [] });
    // zarrita ignores codecs around a shard, so the store decodes them.
    const at = codecs.findIndex(({ name }) => name === "sharding_indexed");
    this.around = at < 0 ? [] : codecs.splice(at + 1).map(({ name, configuration }) => bytesToBytes[name](configuration));
    // zarrita takes every index for one at the end.
    this.hasIndexFirst = codecs.some(({ configuration }) => configuration.index_location === "start");
    const { storage_transformers, shard_file, parts_store, ...members } = this.stored;
    const bare = this.stored.data_type === "bool" ? false : 0;
    this.document = { attributes: {}, ...members, codecs, fill_value: members.fill_value ?? bare };
  }

  chunk(key) {
    const path = (part) => join(this.folder, key + part.key_suffix);
    if (readFile(path(this.anchor)) === undefined) return undefined;
    const pieces = this.parts.map((part) => {
      const bytes = readFile(path(part));
      require(bytes !== undefined, "missing-part", path(part));
      require(part.size === undefined || part.size === bytes.length, "wrong-size", path(part));
      return bytes;
    });
    if (this.stored.shard_file !== undefined && pieces.length > 1) {
      const seal = Buffer.from(pieces[0].slice(-32, -24)).toString("latin1");
      require(seal === "zarrseal", "changed-file", path(this.parts[0]));
    }
    const joined = new Uint8Array(Buffer.concat(pieces));
    return this.around.reduceRight((bytes, codec) => codec.decode(bytes), joined);
  }

  async get(key) {
    if (key === "/zarr.json") return new TextEncoder().encode(JSON.stringify(this.document));
    return this.chunk(key.slice(1));
  }

  async getRange(key, range) {
    const chunk = this.chunk(key.slice(1));
    if (chunk === undefined) return undefined;
    if ("suffixLength" in range) {
      const { suffixLength } = range;
      return this.hasIndexFirst ? chunk.slice(0, suffixLength) : chunk.slice(-suffixLength);
    }
    require(range.offset + range.length <= chunk.length, "bad-data", "a range behind the end of the shard");
    return chunk.slice(range.offset, range.offset + range.length);
  }
}

// --- the output -------------------------------------------------------------------------------------------------------

const DESCRIPTIONS = {
  bool: "|b1", int8: "|i1", uint8: "|u1", int16: "<i2", uint16: "<u2", int32: "<i4", uint32: "<u4", int64: "<i8",
  uint64: "<u8", float32: "<f4", float64: "<f8",
};

function npy(values, dataType) {
  const shape = values.shape.length === 1 ? `(${values.shape[0]},)` : `(${values.shape.join(", ")})`;
  const text = `{'descr': '${DESCRIPTIONS[dataType]}', 'fortran_order': False, 'shape': ${shape}, }`;
  const header = Buffer.from(`${text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11)}\n`, "latin1");
  const length = Buffer.alloc(2);
  length.writeUInt16LE(header.length);
  return Buffer.concat([Buffer.from("\x93NUMPY\x01\x00", "latin1"), length, header, inOrder(values, dataType)]);
}

// The values in C order, whatever the order of zarrita is.
function inOrder({ data, shape, stride }, dataType) {
  const count = shape.reduce((a, b) => a * b, 1);
  const values = new ARRAYS[dataType](count);
  const steps = strides(shape);
  for (let at = 0; at < count; at++) {
    const from = shape.reduce((sum, length, axis) => sum + (Math.floor(at / steps[axis]) % length) * stride[axis], 0);
    values[at] = dataType === "bool" ? Number(valueAt(data, from)) : data[from];
  }
  return Buffer.from(values.buffer);
}

function valueAt(data, at) {
  return typeof data.get === "function" ? data.get(at) : data[at];
}

async function read(folder, array, out) {
  const store = new PartsStore(join(folder, array));
  const opened = await zarr.open.v3(store, { kind: "array" });
  const { shape } = opened;
  // zarrita fails for an array without elements.
  let values = shape.includes(0) ? { data: [], shape, stride: strides(shape) } : await zarr.get(opened);
  // An array without axes is a single value.
  if (values === null || typeof values !== "object") values = { data: [values], shape: [], stride: [] };
  writeFileSync(out, npy(values, store.stored.data_type));
}

function causes(error) {
  return error === undefined ? [] : [error, ...causes(error.cause)];
}

async function answer(folder, array, out) {
  try {
    await read(folder, array, out);
    return { ok: true };
  } catch (error) {
    const named = causes(error).find((each) => each instanceof Unreadable);
    // zarrita wraps what a codec throws.
    const isOfCodec = error?.name === "CodecPipelineError";
    return { ok: false, class: named?.className ?? (isOfCodec ? "bad-data" : null), message: String(error) };
  }
}

const given = process.argv.slice(2);
if (given[0] === "--batch") {
  for await (const line of createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await answer(...JSON.parse(line))));
  }
} else {
  const { ok, message, class: name } = await answer(...given);
  if (!ok) console.error(`${message}\nclass: ${name}`);
  process.exitCode = ok ? 0 : 1;
}
