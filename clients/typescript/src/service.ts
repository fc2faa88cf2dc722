/** A key, or a function that returns it and is called for each request. */
export type ApiKey = string | (() => string | Promise<string>);

/** The URL of a service, as the commands read it: without a scheme it is `http`, and without a host this machine. */
export function serviceUrl(text: string): URL {
  if (text.startsWith("unix:")) {
    throw new TypeError(`"${text}" is a Unix socket: give the URL http://localhost, and a fetch that connects to the socket`);
  }
  let complete = text;
  if (text.startsWith(":")) complete = `http://127.0.0.1${text}`;
  else if (/^[^:]+:\d/.test(text)) complete = `http://${text}`;
  try {
    const url = new URL(complete.endsWith("/") ? complete : `${complete}/`);
    if (url.protocol === "http:" || url.protocol === "https:") return url;
  } catch {
    // The error below says more.
  }
  throw new TypeError(`"${text}" is no URL of a service; write one like http://127.0.0.1:7625`);
}

/** The key of the service, which is read again for each request if it comes from a file or a function. */
export class Key {
  readonly #source: (() => string | Promise<string>) | undefined;
  #last: string | undefined;

  constructor(apiKey?: ApiKey) {
    const file = environment("LEASEHOLD_API_KEY_FILE");
    if (typeof apiKey === "function") {
      this.#source = apiKey;
    } else if (!apiKey && file) {
      this.#source = () => readFile(file);
    } else {
      this.#last = sendable(apiKey || environment("LEASEHOLD_API_KEY") || "", "the API key");
    }
  }

  /** With the key of now. While that cannot be had it is the one of before, so that no lease is lost meanwhile. */
  async headers(): Promise<Record<string, string>> {
    if (this.#source) {
      try {
        this.#last = sendable(await this.#source(), "the API key");
      } catch (error) {
        if (this.#last === undefined) throw error;
      }
    }
    return this.#last ? { Authorization: `Bearer ${this.#last}` } : {};
  }
}

async function readFile(path: string): Promise<string> {
  // Browsers have no variables, and so do not get here. Bundlers must not look for what only Node.js has.
  const module = "node:fs/promises";
  const files = (await import(/* webpackIgnore: true */ /* @vite-ignore */ module)) as typeof import("node:fs/promises");
  const key = sendable(await files.readFile(path, "utf8"), `${path}: the API key`);
  if (!key) throw new TypeError(`${path}: the API key is empty`);
  return key;
}

/** The key without the end of its line. The error does not show it, because errors are logged. */
function sendable(text: string, what: string): string {
  const key = text.replace(/\r?\n$/, "");
  if (/^[!-~]*$/.test(key)) return key;
  throw new TypeError(`${what} has a character that is not allowed in a header; use visible ASCII without spaces`);
}

export function environment(name: string): string | undefined {
  return globalThis.process?.env?.[name] || undefined;
}
