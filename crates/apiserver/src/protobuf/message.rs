//! Converts protobuf messages to JSON values, according to the table.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::ProtobufError;
use super::table::{Form, TypeId, fields};
use super::wire::{RawField, Reader, WireValue};
use crate::clock::{rfc3339_micros, rfc3339_seconds};
use crate::json::DecodeError;
use crate::limits::Weight;

/// No built-in type nests deeper; the limit protects against malformed messages.
const MAX_DEPTH: usize = 40;

pub(super) fn decode(of: TypeId, bytes: &[u8]) -> Result<Value, ProtobufError> {
    let mut out = Map::new();
    let mut weight = Weight::default();
    into(&mut out, of, bytes, 0, &mut weight)?;
    Ok(Value::Object(out))
}

fn into(
    out: &mut Map<String, Value>,
    of: TypeId,
    bytes: &[u8],
    depth: usize,
    weight: &mut Weight,
) -> Result<(), ProtobufError> {
    if depth > MAX_DEPTH {
        return Err(ProtobufError::Malformed("it nests too deeply"));
    }
    let mut reader = Reader::new(bytes);
    while let Some(raw) = reader.next()? {
        let Some(field) = fields(of).iter().find(|field| field.number == raw.number) else { continue };
        match &field.form {
            Form::Message(inner) if field.name.is_empty() => {
                into(out, *inner, raw.bytes()?, depth + 1, weight)?
            }
            Form::List(item) => {
                let list = out.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                let Value::Array(list) = list else { continue };
                items(list, item, &raw, depth, weight)?;
            }
            Form::Map(item) => {
                let map = out.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                let Value::Object(map) = map else { continue };
                let (key, value) = entry(item, raw.bytes()?, depth, weight)?;
                weight.entry(map.len(), &key)?;
                map.insert(key, value);
            }
            form => {
                let value = value(form, &raw, depth, weight)?;
                let empty = value.is_null() || (field.omit_empty && is_empty(&value));
                if !empty {
                    weight.entry(out.len(), field.name)?;
                    out.insert(field.name.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn items(
    list: &mut Vec<Value>,
    form: &Form,
    raw: &RawField<'_>,
    depth: usize,
    weight: &mut Weight,
) -> Result<(), ProtobufError> {
    // Numbers may be packed.
    if let (Form::Integer | Form::Bool, WireValue::Bytes(packed)) = (form, raw.value) {
        let mut reader = Reader::new(packed);
        while !reader.is_empty() {
            let number = RawField { number: raw.number, value: WireValue::Varint(reader.varint()?) };
            weight.item()?;
            list.push(value(form, &number, depth, weight)?);
        }
        return Ok(());
    }
    weight.item()?;
    list.push(value(form, raw, depth, weight)?);
    Ok(())
}

fn entry(
    form: &Form,
    bytes: &[u8],
    depth: usize,
    weight: &mut Weight,
) -> Result<(String, Value), ProtobufError> {
    let mut key = String::new();
    let mut found = match form {
        Form::Text | Form::Bytes => Value::from(""),
        _ => Value::Null,
    };
    let mut reader = Reader::new(bytes);
    while let Some(raw) = reader.next()? {
        match raw.number {
            1 => key = raw.text()?,
            2 => found = value(form, &raw, depth, weight)?,
            _ => {}
        }
    }
    Ok((key, found))
}

fn value(form: &Form, raw: &RawField<'_>, depth: usize, weight: &mut Weight) -> Result<Value, ProtobufError> {
    Ok(match form {
        Form::Text => raw.text()?.into(),
        Form::Bool => (raw.number()? != 0).into(),
        // Negative numbers of all sizes are sign-extended to 64 bits.
        Form::Integer => raw.number()?.cast_signed().into(),
        Form::Double => f64::from_bits(raw.number()?).into(),
        Form::Bytes => STANDARD.encode(raw.bytes()?).into(),
        Form::Message(of) => {
            let mut out = Map::new();
            into(&mut out, *of, raw.bytes()?, depth + 1, weight)?;
            Value::Object(out)
        }
        Form::List(item) => {
            let mut list = Vec::new();
            items(&mut list, item, raw, depth + 1, weight)?;
            Value::Array(list)
        }
        Form::Map(item) => {
            let (key, value) = entry(item, raw.bytes()?, depth + 1, weight)?;
            weight.entry(0, &key)?;
            Value::Object(Map::from_iter([(key, value)]))
        }
        Form::Items => {
            let mut list = Vec::new();
            let mut reader = Reader::new(raw.bytes()?);
            while let Some(item) = reader.next()? {
                weight.item()?;
                list.push(item.text()?.into());
            }
            Value::Array(list)
        }
        Form::Time => time(raw.bytes()?)?.map_or(Value::Null, |at| rfc3339_seconds(at).into()),
        Form::MicroTime => time(raw.bytes()?)?.map_or(Value::Null, |at| rfc3339_micros(at).into()),
        Form::Quantity => first(raw.bytes()?, 1)?.map_or(Ok("0".into()), |f| f.text())?.into(),
        Form::IntOrString => {
            let bytes = raw.bytes()?;
            let is_text = first(bytes, 1)?.map_or(Ok(0), |f| f.number())? == 1;
            if is_text {
                first(bytes, 3)?.map_or(Ok(String::new()), |f| f.text())?.into()
            } else {
                first(bytes, 2)?.map_or(Ok(0), |f| f.number())?.cast_signed().into()
            }
        }
        Form::Raw => {
            let json = first(raw.bytes()?, 1)?.map_or(Ok(&b"null"[..]), |f| f.bytes())?;
            json_value(json, "embedded JSON")?
        }
    })
}

/// JSON inside protobuf.
pub(super) fn json_value(json: &[u8], what: &'static str) -> Result<Value, ProtobufError> {
    match crate::json::decode(json) {
        Ok(decoded) => Ok(decoded.value),
        Err(DecodeError::Heavy(error)) => Err(error.into()),
        Err(DecodeError::Syntax(_)) => Err(ProtobufError::Malformed(what)),
    }
}

/// Seconds and nanoseconds; an empty message means no time.
fn time(bytes: &[u8]) -> Result<Option<Timestamp>, ProtobufError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let seconds = first(bytes, 1)?.map_or(Ok(0), |field| field.number())?.cast_signed();
    let nanos = first(bytes, 2)?.map_or(Ok(0), |field| field.number())?;
    let nanos = i32::try_from(nanos).map_err(|_| ProtobufError::Malformed("time"))?;
    Timestamp::new(seconds, nanos).map(Some).map_err(|_| ProtobufError::Malformed("time"))
}

fn first(bytes: &[u8], number: u32) -> Result<Option<RawField<'_>>, ProtobufError> {
    let mut reader = Reader::new(bytes);
    while let Some(field) = reader.next()? {
        if field.number == number {
            return Ok(Some(field));
        }
    }
    Ok(None)
}
