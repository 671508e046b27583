//! Values that the store of a job returned, as the program holds them.

/// Values or keys of the store. Behind each lies a 0, with which texts in C end.
#[derive(Debug)]
pub struct StoreValues {
    terminated: Vec<Vec<u8>>,
}

impl StoreValues {
    /// Makes the values that a program gets as a handle, of those that the store returned. Each
    /// gets a 0 behind it.
    pub fn new(values: Vec<Vec<u8>>) -> Self {
        let terminated = values.into_iter().map(|mut value| {
            value.push(0);
            value
        });
        Self { terminated: terminated.collect() }
    }

    /// Returns the number of values that the handle holds.
    pub fn count(&self) -> usize {
        self.terminated.len()
    }

    /// Returns the bytes of the value at place `at`, and the 0 behind them; `None` if there is no
    /// such value.
    pub fn terminated(&self, at: usize) -> Option<&[u8]> {
        self.terminated.get(at).map(Vec::as_slice)
    }
}
