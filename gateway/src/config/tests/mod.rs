mod common;
mod fabric;
mod faults;
mod former_values;
mod listen;
mod reference;
mod region;
mod witness;
