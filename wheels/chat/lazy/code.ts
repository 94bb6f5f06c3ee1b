// rehype-highlight, loaded with all grammars for the first text that has a block of code.
import { has } from './has';
import type { Root } from 'hast';

interface Options {
	aliases?: Record<string, string[]>;
}

const isBlock = (name: string, parent: string) => name === 'code' && parent === 'pre';

export default function code(options: Options) {
	return async (tree: Root, file: never): Promise<void> => {
		if (!has(tree, isBlock)) return;

		const [{ default: plugin }, { all }] = await Promise.all([
			import('rehype-highlight'),
			import('lowlight')
		]);

		plugin({ ...options, languages: all })(tree, file);
	};
}
