// micromark can write formulas as HTML by itself, which nobody asks of it: `formulas.ts` does.
export default {};
