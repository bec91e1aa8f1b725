//! Running one step after the other.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

/// A command that must succeed before the next may start.
pub(crate) struct Step {
    what: String,
    program: OsString,
    args: Vec<OsString>,
    variables: Variables,
}

/// Environment variables and their values.
pub(crate) type Variables = Vec<(&'static str, OsString)>;

impl Step {
    /// `program` with `args`, announced as `what`.
    pub(crate) fn new(what: &str, program: &str, args: impl IntoIterator<Item: AsRef<OsStr>>) -> Self {
        Self { what: what.into(), program: program.into(), args: Vec::new(), variables: Vec::new() }.args(args)
    }

    /// A cargo command of one line, split at its spaces.
    pub(crate) fn cargo(what: &str, line: &str) -> Self {
        Self::new(what, "cargo", line.split_whitespace())
    }

    /// With further arguments.
    pub(crate) fn args(mut self, args: impl IntoIterator<Item: AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// With an environment variable.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// With these environment variables.
    pub(crate) fn with_all(mut self, variables: &Variables) -> Self {
        self.variables.extend_from_slice(variables);
        self
    }

    /// Runs it in the workspace's root and says how long it took.
    pub(crate) fn run(&self) -> Result<(), Failed> {
        eprintln!("xtask: {}: {self}", self.what);
        let start = Instant::now();
        let status = self.command().status();
        let failed = |cause: String| Failed(format!("{} failed ({cause}); to repeat it:\n{self}", self.what));
        match status {
            Ok(status) if status.success() => {
                eprintln!("xtask: {}: done in {:.1} s", self.what, start.elapsed().as_secs_f64());
                Ok(())
            }
            Ok(status) => Err(failed(status.to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Runs it without a word and returns what it printed.
    pub(crate) fn output(&self) -> Result<String, Failed> {
        let failed = |cause: String| Failed(format!("{} failed ({cause}); to repeat it:\n{self}", self.what));
        let output = self.command().stderr(Stdio::inherit()).output().map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(output.status.to_string()));
        }
        String::from_utf8(output.stdout).map_err(|error| failed(error.to_string()))
    }

    /// What it prints, if it can run at all and succeeds.
    pub(crate) fn printed(&self) -> Option<String> {
        let output = self.command().stderr(Stdio::null()).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()
    }

    /// Whether it can run at all and succeeds.
    pub(crate) fn succeeds(&self) -> bool {
        self.command().stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    fn command(&self) -> Command {
        // The very cargo that runs us, so that both compile with one compiler.
        let cargo = if self.program == "cargo" { env::var_os("CARGO") } else { None };
        let mut command = Command::new(cargo.unwrap_or_else(|| self.program.clone()));
        command.args(&self.args).envs(self.variables.iter().map(|(name, value)| (name, value))).current_dir(root());
        command
    }
}

impl fmt::Display for Step {
    /// As a line for a shell in the workspace's root.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.variables))?;
        write!(f, "{}", quoted(&self.program))?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

/// As a shell sets them for one command, each with a space after it.
pub(crate) fn shown(variables: &Variables) -> String {
    variables.iter().map(|(name, value)| format!("{name}={} ", quoted(value))).collect()
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=+./:,@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// A step that failed: what it was, and how to repeat it.
pub(crate) struct Failed(pub(crate) String);

/// The workspace's root.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Where cargo puts what it builds here.
pub(crate) fn target_dir() -> Result<PathBuf, Failed> {
    let metadata = Step::cargo("finding the target folder", "metadata --format-version 1 --no-deps").output()?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).map_err(|error| Failed(format!("cargo metadata: {error}")))?;
    let folder = metadata["target_directory"].as_str();
    folder.map(PathBuf::from).ok_or_else(|| Failed("cargo metadata names no target folder".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_shown_as_a_line_that_a_shell_would_run() {
        let step = Step::cargo("x", "test --release").args(["it's", "", "a=b"]).with("RUSTFLAGS", "--cfg kvlease_loom");
        assert_eq!(step.to_string(), r"RUSTFLAGS='--cfg kvlease_loom' cargo test --release 'it'\''s' '' a=b");
    }

    #[test]
    fn a_failed_step_names_the_command_to_repeat() {
        let Err(Failed(text)) = Step::new("breaking", "false", ["x"]).run() else { panic!("false is false") };
        assert_eq!(text, "breaking failed (exit status: 1); to repeat it:\nfalse x");
        assert!(Step::new("", "no-such-program", [""; 0]).run().is_err());
        assert!(!Step::new("", "no-such-program", [""; 0]).succeeds());
    }
}
