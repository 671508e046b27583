mod common;
mod fabric;
mod faults;
mod reference;
mod region;
mod witness;
