// rehype-katex, loaded for the first text that has a formula. remark-math marks formulas by these classes.
import { has } from './has';
import type { Root } from 'hast';

const CLASSES = ['language-math', 'math-display', 'math-inline'];

const isFormula = (_name: string, _parent: string, classes: string[]) =>
	classes.some((name) => CLASSES.includes(name));

export default function formulas() {
	return async (tree: Root, file: never): Promise<void> => {
		if (!has(tree, isFormula)) return;

		const { default: plugin } = await import('rehype-katex');

		plugin()(tree, file);
	};
}
