package list

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// parseCondition reads a condition. Its columns are names until bind finds them.
func parseCondition(text string) (Condition, error) {
	var c Condition
	p := conditionReader{rest: text}
	p.next()
	for p.err == nil {
		c.of = append(c.of, p.term())
		switch {
		case p.err != nil:
		case p.is("and"):
			p.next()
		case p.kind == endOfText:
			return c, nil
		case p.is("or"):
			p.fail("conditions have no or; write a value of the filter for each alternative, or a column that a trigger fills")
		default:
			p.fail("%q stands where a condition ends; write and in front of another term", p.text)
		}
	}
	return Condition{}, p.err
}

// conditionReader reads the tokens of a condition, up to the first mistake.
type conditionReader struct {
	rest string
	kind tokenKind // of the current token
	text string    // its name, text or number
	err  error
}

type tokenKind int

const (
	endOfText tokenKind = iota
	bareWord
	quotedName
	quotedText
	number
	symbol
)

func (p *conditionReader) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

// is reports whether the token is the keyword.
func (p *conditionReader) is(keyword string) bool {
	return p.kind == bareWord && strings.EqualFold(p.text, keyword)
}

// isKeyword reports whether the token is a word that is no name unless it is quoted.
func (p *conditionReader) isKeyword() bool {
	for _, keyword := range [...]string{"and", "or", "not", "is", "null", "true", "false"} {
		if p.is(keyword) {
			return true
		}
	}
	return false
}

// next reads the next token.
func (p *conditionReader) next() {
	p.rest = strings.TrimLeft(p.rest, " \t\r\n")
	if p.rest == "" {
		p.kind, p.text = endOfText, "the end"
		return
	}
	r, size := utf8.DecodeRuneInString(p.rest)
	switch {
	case r == '\'' || r == '"':
		p.quoted(byte(r))
	case unicode.IsLetter(r) || r == '_':
		n := strings.IndexFunc(p.rest, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' && r != '$' })
		p.take(bareWord, n)
	case r >= '0' && r <= '9' || r == '-' || r == '+' || r == '.':
		n := strings.IndexFunc(p.rest[1:], func(r rune) bool { return r != '.' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if n >= 0 {
			n++
		}
		p.take(number, n)
		if !isNumber([]byte(p.text)) || strings.Contains(p.text, "e") {
			p.fail("%q is no number; write digits, perhaps with a point and a minus, and without zeros in front", p.text)
		}
	case strings.HasPrefix(p.rest, "<>") || strings.HasPrefix(p.rest, "<=") || strings.HasPrefix(p.rest, ">="):
		p.take(symbol, 2)
	case r == '=' || r == '<' || r == '>':
		p.take(symbol, 1)
	case strings.HasPrefix(p.rest, "!="):
		p.fail("!= is no operator; write <>")
	default:
		p.fail("%q is not understood; write columns, and, not, is null, = <> < <= > >=, 'texts' and numbers", p.rest[:size])
	}
}

// take makes the next n bytes a token; -1 = all.
func (p *conditionReader) take(kind tokenKind, n int) {
	if n < 0 {
		n = len(p.rest)
	}
	p.kind, p.text, p.rest = kind, p.rest[:n], p.rest[n:]
}

// quoted reads a text or a name in quotes, which stand twice inside.
func (p *conditionReader) quoted(quote byte) {
	p.kind = quotedText
	if quote == '"' {
		p.kind = quotedName
	}
	var b bytes.Buffer
	for i := 1; i < len(p.rest); i++ {
		switch {
		case p.rest[i] != quote:
			b.WriteByte(p.rest[i])
		case i+1 < len(p.rest) && p.rest[i+1] == quote:
			b.WriteByte(quote)
			i++
		default:
			p.text, p.rest = b.String(), p.rest[i+1:]
			if strings.ContainsRune(p.text, 0) || !utf8.ValidString(p.text) {
				p.fail("%q has a character that no text of Postgres has; leave it out", p.text)
			}
			return
		}
	}
	p.fail("a %c is not closed; write it at the end, too, and twice inside", quote)
}

// column reads the name of a column.
func (p *conditionReader) column() operand {
	name := p.text
	switch {
	case p.err != nil:
	case p.kind == quotedName && p.text != "", p.kind == bareWord && !p.isKeyword():
		p.next()
	case p.kind == bareWord:
		p.fail(`%q stands where a column is expected; write a column in front, or "%s" if it is one`, name, name)
	case p.kind == endOfText:
		p.fail("a column is missing at the end; write one, or leave the condition out")
	default:
		p.fail("%q stands where a column is expected; write the column first, then what it is compared with", name)
	}
	return operand{name: name, column: Column{Name: name}}
}

// term reads one term.
func (p *conditionReader) term() term {
	if p.is("not") {
		p.next()
		return term{operator: "=", left: p.column(), right: operand{literal: []byte("f"), kind: kindBool}}
	}
	t := term{left: p.column(), right: operand{literal: []byte("t"), kind: kindBool}}
	switch {
	case p.err != nil:
	case p.is("is"):
		t.operator = "is"
		p.next()
		if p.is("not") {
			t.operator = "is not"
			p.next()
		}
		if !p.is("null") {
			p.fail("%q follows is; write is null or is not null", p.text)
		}
		p.next()
	case p.kind == symbol:
		t.operator = p.text
		p.next()
		t.right = p.operand()
	default:
		t.operator = "="
	}
	return t
}

// operand reads what follows an operator.
func (p *conditionReader) operand() operand {
	o := operand{literal: []byte(p.text)}
	switch {
	case p.err != nil:
		return o
	case p.is("true"):
		o.kind, o.literal = kindBool, []byte("t")
	case p.is("false"):
		o.kind, o.literal = kindBool, []byte("f")
	case p.is("null"):
		p.err = errors.New("nothing is equal to null; write is null or is not null")
	case p.kind == quotedText:
		o.kind = kindText
	case p.kind == number:
		o.kind = kindNumeric
	default:
		return p.column()
	}
	p.next()
	return o
}
