/** What the nine stops of the tour say. Their numbers are measured and come with the data. */

/**
 * @typedef {import("./contract.js").Measured} Measured
 * @typedef {(name: string) => string} Told  the measured number of this name, as a text
 * @typedef {{id: string, title: string, says: string[], found: (told: Told, place: (name: string) => number) => string,
 *   look: string, note?: string}} Words  `note` is what the numbers leave open about the walk that is shown
 */

/** @type {Words[]} */
export const WORDS = [
  {
    id: "loop",
    title: "What a loop is",
    says: [
      "A looped transformer has few layers and applies them again and again. This one has a block F of two layers. It reads the arrows of a graph and a start, calls F six times, and says where a walk of eight steps ends.",
      "After every call we can ask what it would answer now. That is the walker.",
    ],
    look: "Press play, or choose a loop.",
    found: (told) =>
      `After its sixth loop it names the right node in ${told("right")} of walks on graphs it never saw.`,
  },
  {
    id: "walks",
    title: "The same weights, other steps",
    says: [
      "The weights of all loops are the same. So does every loop walk one step? Read the columns: the filled cell goes down by the steps that the loop has walked.",
      "Some loops walk two steps, some one: eight have to fit into six loops, and nothing but the last answer was ever trained. Called more often than in training, this model stays where it is.",
    ],
    look: "Choose another walk, and see whether it goes alike.",
    note: "One walk may go otherwise than most do.",
    found: (told, place) =>
      `On rings the readout stands most often ${places(place)} steps from the start after loops 1 to 6; loop 16 keeps the answer in ${told("kept")}.`,
  },
  {
    id: "selects",
    title: "The state selects the step",
    says: [
      "Now freeze all weights. Call F a seventh time, but first change the state by a small affine map J, the same for every row. J sees no other row, so it cannot look up an arrow by itself.",
      "Without a map the walker stays. With one map F walks a step. With another it walks two.",
    ],
    look: "Switch the map and watch the walker.",
    found: (told) =>
      `Without a map it stays in ${told("unsteered")}; with J one it walks one step in ${told("one")}, with J two it walks two in ${told("two")}.`,
  },
  {
    id: "composes",
    title: "Maps follow each other",
    says: [
      "Each map was fitted for a single call. Still they can be strung together: a map, a call, another map, another call. The steps add up.",
      "The order matters, though: one and then two is not as sure as two and then one.",
    ],
    look: "Choose the first map and the second.",
    found: (told) =>
      `Right after two calls: one then one ${told("one-one")}; one then two ${told("one-two")}; two then one ${told("two-one")}; two then two ${told("two-two")}.`,
  },
  {
    id: "patterns",
    title: "Attention patterns carry the choice",
    says: [
      "What in F differs between one step and two? Take the run that walks two steps. Give single heads of layer 2 the attention pattern that they have in the one-step run. What they read with it, their values, stays their own.",
      "One head is enough to change the answer: where it looks decides how far the walk goes.",
    ],
    look: "Give it the pattern of one head after the other.",
    found: (told) =>
      `The pattern of head 1 alone turns two steps into one in ${told("head-1")}, those of all four heads in ${told("all")}.`,
  },
  {
    id: "edges",
    title: "Where to look, or what is found?",
    says: [
      "Without a patch this run goes on to its own next node: B. Now head 3 of layer 2 is given the pattern that it has in a walk on another graph. It points at the arrow out of the other walk's node. If a pattern says where to look, this run reads its own arrow there: E.",
      "If the head is given its output of the other run instead, that carries what the other run found in its own graph: D.",
    ],
    look: "Bring the pattern, then the output.",
    found: (told) =>
      `Patterns give E in ${told("pattern-E")} and D in ${told("pattern-D")}; outputs give D in ${told("output-D")} and E in ${told("output-E")}.`,
  },
  {
    id: "supervision",
    title: "Training decides what can be selected",
    says: [
      "Five pairs of models differ in one thing. Half were told the last answer only, half the right node after every loop. Then the same maps were fitted to all of them.",
      "Step by step training makes one step easy to select and two steps hard. But much of what J reaches on the others can be read out before F is called: there J answers by itself. That control fails, and it is shown.",
    ],
    look: "Look at what J does without F behind it.",
    note: "",
    found: (told) =>
      `Two steps with J: ${told("final-two")} when trained on the last answer, ${told("stepwise-two")} when trained step by step. Before F: ${told("before-final-two")} and ${told("before-stepwise-two")}.`,
  },
  {
    id: "lasts",
    title: "Control can be made to last",
    says: [
      "Repeat a map that was fitted for one call, and the walk is lost after two or three. Is that the frozen block, or the map?",
      "It is the map. Fitted on states it has led itself, one of the same size walks on and on.",
    ],
    look: "Play both, call after call.",
    found: (told) =>
      `Right at call 8: ${told("published-8")} with the map fitted for one call, ${told("pool-8")} with the one that lasts, and still ${told("pool-64")} at call 64.`,
  },
  {
    id: "yours",
    title: "Your model next",
    says: [
      "Everything here is done by programs you can write: calls, maps, patches. They work on any looped transformer, small or large.",
      "Open your own model by its name or folder. The same page shows its loops, finds the heads by a sweep, and turns every picture into a line of Python.",
    ],
    look: "Go on with a view of this model:",
    note: "",
    found: (told) =>
      `In another model, d8l6-8, other heads carry the choice: the pattern of head 1 turns two steps into one in ${told("head-1")}, that of head 0 in ${told("head-0")}, those of heads 0 and 3 in ${told("both")}.`,
  },
];

/** Where the readout stands most often, loop by loop. @param {(name: string) => number} place @returns {string} */
function places(place) {
  const found = [1, 2, 3, 4, 5, 6].map((loop) => place(`loop-${loop}`)).filter(Number.isFinite);
  return `${found.slice(0, -1).join(", ")} and ${found[found.length - 1]}`;
}
