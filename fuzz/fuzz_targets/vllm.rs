//! [`kvlease_fuzz::vllm()`] under libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvlease_fuzz::vllm(bytes));
