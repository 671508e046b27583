//! The rules of the project that a compiler does not check. All of it is tests.

#![cfg(test)]

mod comments;
mod imports;
mod markdown;
mod names;
mod pages;
mod quantities;
mod shape;
mod sources;
mod text;
mod words;
