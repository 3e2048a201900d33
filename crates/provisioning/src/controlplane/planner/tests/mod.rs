//! Tests of whole passes: a small world with agents that do as they are told.

mod checks;
mod fixedpoint;
mod garbage;
mod rendering;
mod scenarios;
mod story;
mod world;
