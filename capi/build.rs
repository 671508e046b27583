//! Gives the shared library its soname, by which programs ask for it.

fn main() {
    // Change the number when programs must be compiled anew.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liblandbridge.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
