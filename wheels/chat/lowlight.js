// In place of the package for those who import it: the 37 languages that are common, for `all` of 192 would be a
// third of what the page loads before it can be used.
export { common as all, common, createLowlight } from './node_modules/lowlight/index.js';
