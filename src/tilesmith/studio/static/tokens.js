// Tokens of Python and CUDA C++ for highlighting.

const PYTHON = {
  comment: /#[^\n]*/,
  string: /[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)/,
  decorator: /@[\w.]+/,
  number: /\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*\.?[\d_]*(?:[eE][+-]?\d+)?)\b/,
  keyword: /\b(?:and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|None|True|False)\b/,
  library: /\b(?:tl|triton|torch)(?:\.\w+)+/,
  name: /[A-Za-z_]\w*/,
  gap: /\.\.\./,
};

const CUDA = {
  comment: /\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)/,
  string: /"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?/,
  decorator: /^[ \t]*#[^\n]*/m,
  number: /\b(?:0[xX][\da-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?[fFuUlL]*)\b/,
  keyword: /\b(?:auto|bool|break|case|char|const|constexpr|continue|default|do|double|else|extern|false|float|for|if|inline|int|long|return|short|signed|sizeof|static|struct|switch|template|true|typedef|typename|unsigned|using|void|while|__half|size_t|int64_t)\b/,
  library: /\b(?:__global__|__device__|__host__|__shared__|__restrict__|__syncthreads|__shfl\w*|threadIdx|blockIdx|blockDim|gridDim|atomic\w+|cuda[A-Z]\w*|dim3)\b/,
  name: /[A-Za-z_]\w*/,
  gap: /\.\.\./,
};

const COMPILED = new Map(
  Object.entries({ python: PYTHON, cuda: CUDA }).map(([language, kinds]) => [
    language,
    [Object.keys(kinds), new RegExp(Object.values(kinds).map((one) => `(${one.source})`).join("|"), "gm")],
  ]),
);

// Call `found(kind, text)` for every part of the text, in order; kind is "" for the rest.
export function tokens(text, language, found) {
  const [kinds, pattern] = COMPILED.get(language) ?? COMPILED.get("python");
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    if (!match[0]) continue;
    if (match.index > end) found("", text.slice(end, match.index));
    const kind = kinds[match.slice(1).findIndex((group) => group !== undefined)];
    found(kind === "name" ? "" : kind, match[0]);
    end = match.index + match[0].length;
  }
  if (end < text.length) found("", text.slice(end));
}

export function highlight(code, text, language) {
  code.replaceChildren();
  tokens(text, language, (kind, part) => {
    if (!kind) code.append(part);
    else {
      const span = document.createElement("span");
      span.className = `t-${kind}`;
      span.textContent = part;
      code.append(span);
    }
  });
}
