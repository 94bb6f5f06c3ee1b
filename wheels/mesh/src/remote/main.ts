import { mount } from 'svelte';
import '../page.css';
import Remote from './Remote.svelte';
import './remote.css';

const target = document.getElementById('page');
if (target) mount(Remote, { target });
