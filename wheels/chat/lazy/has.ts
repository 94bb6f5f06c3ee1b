// Whether a tree of HTML has an element of some kind.
import type { Nodes } from 'hast';

type Test = (name: string, parent: string, classes: string[]) => boolean;

export function has(node: Nodes, test: Test, parent = ''): boolean {
	const name = node.type === 'element' ? node.tagName : '';

	if (node.type === 'element') {
		const classes = node.properties.className;

		if (test(name, parent, Array.isArray(classes) ? classes.map(String) : [])) return true;
	}

	return 'children' in node && node.children.some((child) => has(child, test, name));
}
