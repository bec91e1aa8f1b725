//! The command `kvlease`.

fn main() -> std::process::ExitCode {
    conformance::cli::front::main()
}
