//! Writing into a caller's buffer without panics: a cursor that remembers that it ran out of room.

/// Appends to a slice; [`Writer::finish`] tells whether everything fitted.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
    fits: bool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0, fits: true }
    }

    /// Appends all of `bytes` or nothing.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let end = self.at.saturating_add(bytes.len());
        match self.out.get_mut(self.at..end) {
            Some(room) if self.fits => {
                room.copy_from_slice(bytes);
                self.at = end;
            }
            _ => self.fits = false,
        }
    }

    /// How many bytes were written, or `None` if something did not fit.
    pub(crate) fn finish(self) -> Option<usize> {
        self.fits.then_some(self.at)
    }
}
