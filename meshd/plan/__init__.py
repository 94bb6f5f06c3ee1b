"""From a model, the machines of a mesh and the wishes of a user to a plan, and to what that will do. Pure."""
