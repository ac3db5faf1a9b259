// A program that looks up names as Node programs do: dns.lookup (libc) and c-ares.
//
// lookup.js KIND,NAME,TIMES,PAUSE_MS...   KIND: host (dns.lookup), a, aaaa, srv, txt (c-ares)
// One line of JSON for each look-up: {"got": ["10.0.0.1"], "error": ""}
const dns = require('node:dns').promises;
const { setTimeout } = require('node:timers/promises');

const WORDS = { ENOTFOUND: 'no name', ENODATA: 'no data', EAI_AGAIN: 'try again', ESERVFAIL: 'try again' };
const KINDS = {
  host: async (name) => (await dns.lookup(name, { all: true })).map((one) => one.address),
  a: (name) => dns.resolve4(name),
  aaaa: (name) => dns.resolve6(name),
  srv: async (name) => (await dns.resolveSrv(name)).map((one) => `${one.priority} ${one.weight} ${one.port} ${one.name}`),
  txt: async (name) => (await dns.resolveTxt(name)).map((parts) => parts.join('')),
};

async function main() {
  for (const argument of process.argv.slice(2)) {
    const [kind, name, times, pause] = argument.split(',');
    for (let turn = 0; turn < Number(times); turn++) {
      if (turn) await setTimeout(Number(pause));
      const said = await KINDS[kind](name).then(
        (got) => ({ got, error: '' }),
        (error) => ({ got: [], error: WORDS[error.code] ?? String(error.code) }),
      );
      console.log(JSON.stringify(said));
    }
  }
}

main();
