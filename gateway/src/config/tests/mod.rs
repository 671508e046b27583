mod common;
mod fabric;
mod faults;
mod listen;
mod reference;
mod region;
mod witness;
