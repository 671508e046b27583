//! Plans of random fabrics: proved, and compared with optima that are computed by other means.

mod blocks;
mod express;
mod fabrics;
mod memory;
mod optimum;
mod page;
mod proved;
mod rooted;
mod shapes;
