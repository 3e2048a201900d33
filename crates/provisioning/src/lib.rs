//! The four providers in the order of the hand-offs, and what surrounds them.
