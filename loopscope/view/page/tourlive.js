/** What can be tried at each stop of the tour. */

import { ATTENTION, percent } from "./colour.js";
import { el, fill, labelledChoice } from "./dom.js";
import { stepsTo, walkOn } from "./graph.js";
import { graphView } from "./graphview.js";
import { heatMap } from "./heatmap.js";
import { lineChart } from "./lines.js";
import { pointAt, sharesAt, trailOf } from "./readout.js";
import { topList } from "./sides.js";
import { visible } from "./textgrid.js";
import { optionsOf, othersOf, walkChoice, walkLive, walkOf } from "./tourwalk.js";
import { commandLine } from "./trouble.js";
import { readoutHeat, WALK_READ } from "./walk.js";

/**
 * @typedef {import("./app.js").App} App
 * @typedef {import("./contract.js").Answer} Answer
 * @typedef {import("./contract.js").Stop} Stop
 * @typedef {{graph: number[], start: number, depth: number}} Walk
 * @typedef {{element: HTMLElement, show: (signal: AbortSignal) => Promise<void>, stop?: () => void}} Live
 */

/** @type {Record<string, (app: App, stop: Stop) => Live>} */
export const LIVE = {
  loop: (app, stop) =>
    walkLive(app, stop, { options: optionsOf(stop.programs.slice(0, 1)), label: "Run", walks: true }),

  walks: (app, stop) => {
    const choices = el("div", { class: "controls" });
    /** @type {{answer: Answer, walk: Walk} | null} */
    let now = null;
    const heat = heatMap({
      label: "Readout of every loop, nodes in the order of the walk",
      tell: (row, column) =>
        now
          ? `${readoutHeat(now.answer, now.walk).rowNames?.[row]}, ${now.answer.head.points[column].name}: ${percent(readoutHeat(now.answer, now.walk).value(row, column))}`
          : "",
    });
    const words = el("p", { class: "sentence", "aria-live": "polite" });
    return {
      element: el(
        "div",
        { class: "walking" },
        choices,
        words,
        el("figure", {}, heat.element),
        el(
          "p",
          { class: "key" },
          "Rows: the nodes in the order of the walk. Numbers: probability in per cent. Behind the upright line the loops were never trained.",
        ),
      ),
      show: async (signal) => {
        const walk = walkOf(app, stop);
        fill(choices, walkChoice(app, stop));
        const program = stop.programs[stop.programs.length - 1];
        const answer = await app.session.ask(program, WALK_READ, { input: walk, signal });
        if (signal.aborted) return;
        now = { answer, walk };
        const trail = trailOf(answer);
        const made = readoutHeat(answer, walk);
        heat.draw({
          ...made,
          cell: { most: 70, high: 34 },
          breaks: { ...made.breaks, columns: [app.hello.loops + 1] },
        });
        const places = trail.slice(1).map((each) => stepsTo(walk.graph, walk.start, each.node));
        const told = places.map((place) => (place < 0 ? "off the path" : place)).join(", ");
        fill(words, el("strong", {}, `Steps from the start, after loops 1 to ${places.length}: `), `${told}.`);
      },
    };
  },

  selects: (app, stop) =>
    walkLive(app, stop, { options: optionsOf(stop.programs), label: "Map before loop 7", walks: true }),

  composes: (app, stop) => walkLive(app, stop, { options: optionsOf(stop.programs), label: "Maps", walks: true }),

  patterns: (app, stop) => {
    let tokens = /** @type {any[]} */ ([]);
    let values = /** @type {number[][]} */ ([]);
    const names = ["two-step run", "one-step run"];
    const rows = heatMap({
      label: "Where head 1 looks from the last row, in two runs",
      tell: (row, column) =>
        `${names[row]}: ${percent(values[row]?.[column] ?? NaN)} at row ${column} “${visible(tokens[column]?.text ?? "")}”${tokens[column]?.title ? `, ${tokens[column].title}` : ""}`,
    });
    const figure = el(
      "figure",
      {},
      el(
        "figcaption",
        {},
        "Where head 1 of layer 2 looks from the last row in loop 7, in the run of two steps and in that of one",
      ),
      rows.element,
    );
    const live = walkLive(app, stop, {
      options: stop.programs.map((program) => {
        const head = /head\[(\d+)\]/.exec(program);
        return {
          value: program,
          program,
          text: !program.includes("<-") ? "nothing" : head ? `head ${head[1]}` : "all heads",
        };
      }),
      label: "Patterns from the one-step run",
      bare: true,
      beside: async (answer, walk, _, signal) => {
        const givers = stop.programs[0].replace("J:two", "J:one");
        const read = { kind: "patterns", head: 1, place: stop.places[0] ?? "loop[7].layer[2]", size: 0 };
        const about = { input: walk, signal };
        const [mine, theirs, input] = await Promise.all([
          app.session.ask(stop.programs[0], read, about),
          app.session.ask(givers, read, about),
          app.session.ask(app.hello.program, { kind: "input" }, about),
        ]);
        const side = mine.arrays.pattern.shape[1];
        const last = (/** @type {Answer} */ each) =>
          Array.prototype.slice.call(each.arrays.pattern.data, (side - 1) * side, side * side);
        values = [last(mine), last(theirs)];
        tokens = input.head.tokens;
        rows.draw({
          rows: 2,
          columns: side,
          value: (row, column) => values[row][column],
          scale: ATTENTION,
          rowNames: ["two steps", "one step"],
          columnNames: tokens.map((token) => visible(token.text)),
          cell: { most: 24, least: 4, high: 24 },
        });
        return topList(answer, answer.head.points.length - 1, walk);
      },
    });
    live.element.append(figure);
    return live;
  },

  edges: (app, stop) => {
    const other = graphView();
    const figure = el(
      "figure",
      { class: "other" },
      el("figcaption", {}, "The other run, on its own graph"),
      other.element,
    );
    const table = el("dl", { class: "letters" });
    const theirsOf = () => /** @type {Walk} */ (othersOf(app, stop).other);
    const options = stop.programs.map((program) => ({
      value: program,
      program,
      text: !program.includes("<-") ? "nothing" : program.includes(".z<-") ? "its output" : "its pattern",
    }));
    const live = walkLive(app, stop, {
      options,
      label: "From the other run",
      bare: true,
      meaning: (walk, node) => {
        const letter = lettersOf(walk, theirsOf()).find((each) => each.node === node);
        return letter ? `This is ${letter.name}: ${letter.says}` : null;
      },
      beside: async (answer, walk, _, signal) => {
        const theirs = theirsOf();
        const giver = await app.session.ask(stop.programs[0], WALK_READ, { input: theirs, signal });
        const trail = trailOf(giver);
        other.show({
          walk: theirs,
          trail,
          loop: trail.length - 1,
          shares: sharesAt(giver, giver.head.points.length - 1),
        });
        const points = answer.head.points.length - 1;
        const shares = sharesAt(answer, points);
        fill(
          table,
          ...lettersOf(walk, theirs).flatMap((each) => {
            const bar = el("span", { class: "bar" });
            bar.style.width = `${Math.max(0.5, 100 * (shares?.[each.node] ?? 0))}%`;
            return [
              el("dt", {}, each.name),
              el(
                "dd",
                {},
                `${each.says}: ${each.arrow}`,
                el("span", { class: "share" }, percent(shares?.[each.node] ?? NaN)),
                bar,
              ),
            ];
          }),
        );
        return figure;
      },
    });
    live.element.append(table);
    live.element.classList.add("equal");
    return live;
  },

  supervision: (app, stop) => {
    const controls = el("div", { class: "controls" });
    const bars = el("div", { class: "bars" });
    return {
      element: el("div", { class: "walking" }, controls, bars),
      show: async () => {
        const before = app.state.get().pick === "before";
        fill(
          controls,
          labelledChoice(
            "Read",
            [
              { value: "", text: "J, then F" },
              { value: "before", text: "J alone, before F" },
            ],
            before ? "before" : "",
            (value) => app.state.set({ pick: value }),
          ),
        );
        const groups = [
          { key: "final", text: "told the last answer only" },
          { key: "stepwise", text: "told the node after every loop" },
        ];
        fill(
          bars,
          ...["one", "two"].flatMap((map) => [
            el("h3", {}, map === "one" ? "One step with J" : "Two steps with J"),
            ...groups.map((group) => {
              const number = stop.numbers.find((each) => each.id === `${before ? "before-" : ""}${group.key}-${map}`);
              const bar = el("span", { class: `bar ${group.key}` });
              bar.style.width = `${Math.max(0.5, asShare(number?.value) * 100)}%`;
              return el(
                "div",
                { class: "measure", title: number?.title ?? "" },
                el("span", { class: "name" }, group.text),
                el(
                  "span",
                  { class: "share" },
                  number ? number.text : "not measured",
                  el("small", {}, intervalOf(number)),
                ),
                bar,
              );
            }),
          ]),
        );
      },
    };
  },

  lasts: (app, stop) => {
    const chart = lineChart();
    return walkLive(app, stop, {
      options: stop.programs.map((program) => ({
        value: program,
        program,
        text: program.includes("pool") ? "fitted on its own states" : "fitted for one call",
      })),
      label: "Map",
      walks: true,
      beside: async (_, walk, __, signal) => {
        const answers = await Promise.all(
          stop.programs.map((program) => app.session.ask(program, WALK_READ, { input: walk, signal })),
        );
        const first = 6;
        const calls = Array.from({ length: 9 }, (___, call) => call);
        chart.show({
          title: "Probability of the right node, on this walk",
          lines: answers.map((answer, at) => ({
            name: stop.programs[at].includes("pool") ? "lasting" : "for one call",
            values: calls.map(
              (call) =>
                sharesAt(answer, pointAt(answer.head.points, first + call))?.[
                  walkOn(walk.graph, walk.start, walk.depth + call)
                ] ?? NaN,
            ),
          })),
          x: calls.map(String),
          xTitle: "calls after loop 6",
          low: 0,
          high: 1,
          format: percent,
        });
        return chart.element;
      },
    });
  },

  yours: (app) => {
    const links = [
      { view: "walk", text: "Walk: switch J between any two loops" },
      { view: "patterns", text: "Patterns: every head of every loop" },
      { view: "patch", text: "Patch: put one run's insides into another" },
      { view: "sweep", text: "Sweep: find the heads that matter" },
      { view: "compare", text: "Compare: two runs side by side" },
    ];
    return {
      element: el(
        "div",
        { class: "yours" },
        el(
          "ul",
          {},
          ...links.map((each) =>
            el(
              "li",
              {},
              el(
                "button",
                { type: "button", class: "link", onclick: () => app.go({ view: each.view, pick: "", loop: "" }) },
                each.text,
              ),
            ),
          ),
        ),
        el("p", {}, "A model of your own, from a folder or by its name:"),
        commandLine("loopscope view FOLDER"),
        commandLine("loopscope view HuggingFaceTB/SmolLM2-135M --loops 4"),
        el("p", {}, "In a notebook:"),
        commandLine("loopscope.view(model)"),
      ),
      show: async () => {},
    };
  },
};

/**
 * The three answers that tell where a head looks from what it finds: of this run, of another one, and of this graph at
 * the other's place.
 * @param {Walk} walk @param {Walk} theirs @returns {{name: string, node: number, says: string, arrow: string}[]}
 */
export function lettersOf(walk, theirs) {
  const here = walkOn(walk.graph, walk.start, walk.depth);
  const there = walkOn(theirs.graph, theirs.start, theirs.depth);
  const letters = [
    { name: "B", from: here, node: walk.graph[here], says: "the run's own next node" },
    { name: "D", from: there, node: theirs.graph[there], says: "what the other run answers" },
    { name: "E", from: there, node: walk.graph[there], says: "the arrow of the other's place, in this graph" },
  ];
  return letters.map(({ from, ...each }) => ({ ...each, arrow: `${from} → ${each.node}` }));
}

/** The interval of a measured number. @param {import("./contract.js").Measured | undefined} number @returns {string} */
function intervalOf(number) {
  if (!number || number.low === null || number.high === null) return "";
  return ` [${(100 * number.low).toFixed(1)}, ${(100 * number.high).toFixed(1)}]`.replace("-", "−");
}

/** A number of the ledger as a share: some are in per cent. @param {number | undefined} value @returns {number} */
function asShare(value) {
  if (value === undefined) return 0;
  return value > 1 ? value / 100 : value;
}
