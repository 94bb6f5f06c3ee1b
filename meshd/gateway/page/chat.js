// The chat page of `meshd serve`. What a model says is not trusted: it is inserted as text, never as HTML.
// Nothing is stored but an API key, in this tab. Up to `class Page`, nothing touches the document.
"use strict";

const MOST_TURNS = 100;
const MOST_CHARS = 1 << 20; // of a conversation, of one answer, of one event
const POLL_MS = 2000;
const KEY_NAME = "meshd-key";

// Events and comments of server-sent events, however the bytes are cut (WHATWG HTML, 9.2.6).
async function* streamItems(reader) {
  const decoder = new TextDecoder();
  let held = "";
  let data = null;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return; // an event without its blank line is not whole
      held += decoder.decode(value, { stream: true });
      const lines = held.split(/\r\n|\n|\r(?!$)/); // after a CR at the end an LF may follow
      held = lines.pop();
      for (const line of lines) {
        if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
        if (line.startsWith("data:")) {
          const more = line.slice(line[5] === " " ? 6 : 5);
          data = data === null ? more : `${data}\n${more}`;
        }
        if (line === "" && data !== null) {
          yield { data };
          data = null;
        }
      }
      if (held.length + (data ?? "").length > MOST_CHARS) throw new Error("an event is too long");
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection may be gone already
  }
}

function newAnswer() {
  return { text: "", thought: "", error: "", finish: "", done: false, tokens: 0, perSecond: 0 };
}

const asText = (value) => (typeof value === "string" ? value : "");
const asNumber = (value) => (Number.isFinite(value) && value > 0 ? value : 0);

// Add what one event says; gives the text that is new.
function take(answer, data) {
  const piece = { text: "", thought: "" };
  if (data === "[DONE]") {
    answer.done = true;
    return piece;
  }
  let said;
  try {
    said = JSON.parse(data);
  } catch {
    return piece; // an event that broke off: the next one says why
  }
  if (said?.error) answer.error = asText(said.error.message) || "no reason given";
  const choice = said?.choices?.[0];
  piece.text = asText(choice?.delta?.content);
  piece.thought = asText(choice?.delta?.reasoning_content);
  answer.text += piece.text;
  answer.thought += piece.thought;
  answer.finish = asText(choice?.finish_reason) || answer.finish;
  answer.tokens = asNumber(said?.timings?.predicted_n) || asNumber(said?.usage?.completion_tokens) || answer.tokens;
  answer.perSecond = asNumber(said?.timings?.predicted_per_second) || answer.perSecond;
  return piece;
}

// How an answer ended whose stream has ended; `seconds` since its first text.
function ending(answer, seconds) {
  if (answer.error) return { bad: true, note: `The answer ended with an error: ${answer.error}` };
  if (!answer.done) return { bad: true, note: "The answer was cut: the connection ended before it was complete." };
  const perSecond = answer.perSecond || (seconds > 0 ? answer.tokens / seconds : 0);
  const parts = [];
  if (answer.finish === "length") parts.push("Cut at the limit of tokens.");
  if (!answer.text) parts.push("The model gave no answer.");
  if (answer.tokens) parts.push(`${answer.tokens} tokens`);
  if (perSecond) parts.push(`${perSecond.toFixed(1)} tokens/s`);
  return { bad: false, note: parts.join(" · ") };
}

// What an answer with an error status says.
function refusal(status, body) {
  try {
    return asText(JSON.parse(body).error.message).slice(0, 2000) || `HTTP status ${status}`;
  } catch {
    return `HTTP status ${status}`;
  }
}

function healthLine(said) {
  if (said.status === "ok") {
    const models = Object.entries(said.models ?? {}).map(([name, state]) => `${name} (${asText(state)})`);
    return models.length ? models.join(", ") : `Ready: ${asText(said.model)}`;
  }
  const percent = typeof said.progress === "number" ? ` (${Math.round(said.progress * 100)} %)` : "";
  return `${asText(said.status)}: ${asText(said.reason)}${percent}`;
}

// Whole turns only: templates of some models demand that user and assistant alternate.
function messages(turns, question) {
  const whole = turns.filter((turn) => turn.answer.text);
  const said = whole.flatMap((turn) => [
    { role: "user", content: turn.question },
    { role: "assistant", content: turn.answer.text },
  ]);
  return [...said, { role: "user", content: question }];
}

// How many of the oldest turns are too many.
function excess(turns) {
  let chars = 0;
  for (let at = turns.length - 1; at >= 0; at--) {
    const { question, answer } = turns[at];
    chars += question.length + answer.text.length + answer.thought.length;
    if (chars > MOST_CHARS || turns.length - at > MOST_TURNS) return at + 1;
  }
  return 0;
}

function keptKey(given) {
  try {
    if (given) sessionStorage.setItem(KEY_NAME, given);
    return sessionStorage.getItem(KEY_NAME) ?? "";
  } catch {
    return given ?? ""; // a browser that keeps nothing
  }
}

class Page {
  constructor() {
    this.turns = [];
    this.running = null; // what ends the answer under way
    this.watching = false;
    this.apiKey = keptKey();
    for (const id of ["log", "status", "fresh", "keys", "exposed", "key", "ask", "question", "send", "stop", "turn", "model"]) {
      this[id] = document.getElementById(id);
    }
    this.ask.addEventListener("submit", (event) => this.onSubmit(event));
    this.keys.addEventListener("submit", (event) => this.onKey(event));
    this.stop.addEventListener("click", () => this.running?.abort());
    this.fresh.addEventListener("click", () => this.onFresh());
    this.question.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.ask.requestSubmit();
    });
    this.watch();
  }

  onSubmit(event) {
    event.preventDefault();
    const question = this.question.value.trim();
    if (!question || this.running) return;
    this.question.value = "";
    this.answer(question);
  }

  askForKey() {
    this.exposed.hidden = isSecureContext; // HTTPS, or this machine
    this.keys.hidden = false;
  }

  onKey(event) {
    event.preventDefault();
    this.apiKey = this.key.value;
    keptKey(this.apiKey);
    this.key.value = "";
    this.keys.hidden = true;
    this.ask.requestSubmit();
  }

  onFresh() {
    this.running?.abort();
    this.forget(() => true);
    this.question.focus();
  }

  // Of a gateway with several models; the first is what a request without a name gets.
  offer(names) {
    if (names.length < 2 || this.model.options.length === names.length) return;
    this.model.replaceChildren(...names.map((name) => new Option(name, name)));
    this.model.hidden = false;
  }

  forget(isOver) {
    for (const turn of this.turns.filter(isOver)) turn.node.remove();
    this.turns = this.turns.filter((turn, at) => !isOver(turn, at));
  }

  say(line) {
    if (this.status.textContent !== line) this.status.textContent = line; // said once, not for each token
  }

  async answer(question) {
    this.forget((turn) => !turn.answer.text); // a question that failed is asked again
    const body = JSON.stringify({
      ...(this.model.value ? { model: this.model.value } : {}),
      messages: messages(this.turns, question),
      stream: true,
      stream_options: { include_usage: true },
    });
    const turn = this.newTurn(question);
    const abort = (this.running = new AbortController());
    this.showBusy(true);
    this.say("Waiting for the model …");
    let end = { bad: false, note: "Stopped." };
    try {
      end = await this.stream(turn, body, abort.signal);
    } catch (error) {
      const why = error instanceof TypeError ? "no connection to meshd" : error.message;
      const what = turn.answer.text || turn.answer.thought ? "The answer was cut" : "No answer";
      if (!abort.signal.aborted) end = { bad: true, note: `${what}: ${why}.` };
    }
    this.running = null;
    this.showBusy(false);
    if (this.turns.includes(turn)) this.finish(turn, end);
    this.watch();
  }

  async stream({ answer, show }, body, signal) {
    const headers = { "Content-Type": "application/json" };
    if (this.apiKey) headers.Authorization = `Bearer ${this.apiKey}`;
    const response = await fetch("/v1/chat/completions", { method: "POST", headers, body, signal });
    if (!response.ok) {
      if (response.status === 401) this.askForKey();
      return { bad: true, note: refusal(response.status, await response.text()) };
    }
    let began = 0;
    for await (const item of streamItems(response.body.getReader())) {
      if (item.comment !== undefined) {
        this.say(item.comment === "keep-alive" ? "Still waiting for the model …" : item.comment);
        continue;
      }
      this.say("Answering …");
      show(take(answer, item.data));
      began ||= performance.now();
      if (answer.done || answer.error) break;
      if (answer.text.length + answer.thought.length > MOST_CHARS) throw new Error("it is too long for this page");
    }
    return ending(answer, (performance.now() - began) / 1000);
  }

  finish(turn, { bad, note }) {
    const line = turn.node.querySelector(".note");
    line.textContent = note;
    line.hidden = !note;
    line.classList.toggle("bad", bad);
    if (!turn.answer.text && !turn.answer.done && !this.question.value) this.question.value = turn.question;
    if (!this.keys.hidden) this.key.focus();
  }

  newTurn(question) {
    const node = this.turn.content.cloneNode(true).firstElementChild;
    node.querySelector(".question").textContent = question;
    const details = node.querySelector("details");
    const texts = { text: new Text(), thought: new Text() };
    node.querySelector(".answer").append(texts.text);
    node.querySelector(".thought").append(texts.thought);
    const show = (piece) => {
      const follow = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
      if (piece.thought && details.hidden) {
        details.hidden = false;
        details.open = true;
      }
      if (piece.text && !texts.text.length) details.open = false; // the answer begins
      texts.text.appendData(piece.text);
      texts.thought.appendData(piece.thought);
      if (follow) this.log.scrollTop = this.log.scrollHeight;
    };
    const turn = { question, answer: newAnswer(), node, show };
    this.turns.push(turn);
    const over = excess(this.turns);
    this.forget((_, at) => at < over);
    this.log.append(node);
    this.log.scrollTop = this.log.scrollHeight;
    return turn;
  }

  showBusy(busy) {
    this.log.setAttribute("aria-busy", String(busy)); // read out when it is whole
    this.send.hidden = busy;
    this.stop.hidden = !busy;
  }

  // Show the state of the model until it is ready.
  async watch() {
    if (this.watching) return;
    this.watching = true;
    for (let ready = false; !ready; ) {
      let line = "No connection to meshd";
      try {
        const said = await (await fetch("/health", { cache: "no-store" })).json();
        line = healthLine(said);
        this.offer(Object.keys(said.models ?? {}));
        ready = said.status === "ok";
      } catch {
        // said below
      }
      if (!this.running) this.say(line);
      if (!ready) await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
    this.watching = false;
  }
}

if (typeof document !== "undefined") new Page();
