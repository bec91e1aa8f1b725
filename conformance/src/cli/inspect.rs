//! `kvlease inspect`: what a captured notification says.

use std::{
    io::{Read as _, Write as _},
    process::ExitCode,
};

use clap::Args;
use lease_proto::{
    frame::Frame,
    id::{ReaderRank, Token},
    wire::{
        Message, Rejected, Wire,
        native::{Body, Party},
        vllm,
    },
};
use serde_json::{Map, Value, json};

use super::complain;
use crate::engine::unhex;

/// No fabric carries longer notifications.
const LONGEST: u64 = 16 << 20;

/// Which message, of which wire.
#[derive(Args, Clone, Debug)]
pub struct InspectArgs {
    /// Wire: native or vllm
    #[arg(long, default_value_t = Wire::Native)]
    pub wire: Wire,
    /// The message in hexadecimal digits; spaces and 0x are ignored [default: raw bytes from standard input]
    #[arg(long, value_name = "STRING")]
    pub hex: Option<String>,
}

/// Prints one message as a JSON object.
pub fn inspect(args: &InspectArgs) -> ExitCode {
    let bytes = match &args.hex {
        Some(text) => from_hex(text),
        None => from_standard_input(),
    };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(why) => return complain("kvlease inspect", why),
    };
    let (said, status) = match described(args.wire, &bytes) {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(why) => (json!({"rejected": why.name()}), ExitCode::FAILURE),
    };
    match writeln!(std::io::stdout(), "{said}") {
        Ok(()) => status,
        Err(error) => complain("kvlease inspect", format!("cannot print the message: {error}")),
    }
}

fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let words = text.split_whitespace().map(|word| word.strip_prefix("0x").or(word.strip_prefix("0X")).unwrap_or(word));
    unhex(&words.collect::<String>()).ok_or_else(|| "--hex: expected an even number of hexadecimal digits".into())
}

fn from_standard_input() -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().take(LONGEST.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read standard input: {error}"))?;
    if bytes.len() as u64 > LONGEST {
        return Err(format!("standard input is longer than {LONGEST} bytes: expected one notification"));
    }
    Ok(bytes)
}

fn described(wire: Wire, bytes: &[u8]) -> Result<Value, Rejected> {
    if wire == Wire::Vllm {
        return vllm::decode(bytes).map(text);
    }
    Ok(match lease_proto::wire::decode(wire, bytes)? {
        Message::Native { session, seq, body } => {
            let mut said = Map::new();
            said.insert("kind".into(), body.name().into());
            said.insert("session".into(), id(session.0));
            said.insert("number".into(), seq.0.into());
            if let Value::Object(fields) = fields(&body) {
                said.extend(fields);
            }
            said.into()
        }
        Message::Vllm(message) => text(message),
        Message::Foreign(bytes) => json!({"kind": "foreign", "bytes": bytes.len()}),
    })
}

fn text(message: vllm::Message<'_>) -> Value {
    match message {
        vllm::Message::Heartbeat(ids) => json!({"kind": "heartbeat", "ids": ids.iter().map(lossy).collect::<Vec<_>>()}),
        vllm::Message::Completion { id, consumers } => json!({"kind": "completion", "id": lossy(id), "consumers": consumers}),
        vllm::Message::PushRegistration(bytes) => json!({"kind": "push_registration", "bytes": bytes.len()}),
    }
}

/// The body's fields by their names in docs/wire.md. Durations and instants are decimal seconds.
fn fields(body: &Body<'_>) -> Value {
    match body {
        Body::Hello(hello) => json!({
            "lowest": hello.lowest,
            "highest": hello.highest,
            "token": token(hello.token),
            "party": party(&hello.party),
            "metadata": metadata(hello.metadata),
        }),
        Body::HelloAck(ack) => json!({"re": ack.re.0, "version": ack.version, "party": party(&ack.party)}),
        Body::Renew(renew) => {
            json!({"reader": reader(renew.reader), "tokens": renew.tokens.iter().map(token).collect::<Vec<_>>()})
        }
        Body::Renewed(renewed) => {
            let exceptions = renewed.exceptions.iter().map(|(index, what)| match what {
                Ok(time) => json!({"index": index, "code": "granted", "time": time.to_string()}),
                Err(refusal) => json!({"index": index, "code": refusal.name()}),
            });
            json!({
                "re": renewed.re.0,
                "count": renewed.count,
                "granted": renewed.granted.to_string(),
                "exceptions": exceptions.collect::<Vec<_>>(),
            })
        }
        Body::Complete(about) | Body::Release(about) => json!({"token": token(about.token), "reader": reader(about.reader)}),
        Body::Completed(answer) => json!({"re": answer.re.0, "token": token(answer.token)}),
        Body::Gone(gone) => json!({"re": gone.re.0, "token": token(gone.token), "why": gone.why.name()}),
        Body::TimeReply(reply) => {
            json!({"re": reply.re.0, "received": reply.received.to_string(), "sent": reply.sent.to_string()})
        }
        _ => json!({}),
    }
}

fn party(party: &Party<'_>) -> Value {
    json!({
        "engine": lossy(party.engine),
        "incarnation": id(party.incarnation.0),
        "rank": party.rank,
        "ranks": party.ranks,
        "clock": id(party.clock.0),
        "session": id(party.session.0),
        "extension": party.extension.to_string(),
        "drift_ppm": party.drift_ppm,
        "max_message": party.max_message,
        "capabilities": party.capabilities,
    })
}

fn metadata(bytes: &[u8]) -> Value {
    match Frame::decode(bytes) {
        Ok(frame) => json!({"bytes": bytes.len(), "incarnation": id(frame.incarnation().0)}),
        Err(error) => json!({"bytes": bytes.len(), "broken": error.to_string()}),
    }
}

/// Without its nonce: a token is a bearer secret.
fn token(token: Token) -> Value {
    json!({"number": token.number})
}

fn reader(reader: ReaderRank) -> Value {
    json!({"rank": reader.rank(), "of": reader.of()})
}

/// A random number: too large for readers of JSON that know only floats.
fn id(number: u64) -> Value {
    format!("{number:016x}").into()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
