// Package redact writes connection strings without the secrets in them, for
// settings, logs and errors.
package redact

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Mask replaces what is hidden.
const Mask = "xxxxx"

// URL returns the public parts of a connection string: a URL of Postgres, Redis or
// HTTP, or key=value pairs of Postgres.
//
// Invariant: the result is built, never cut out of the input. It consists of the
// scheme, the user's name, the hosts, their ports, the database (or Sentinel's
// master) and the parameters in publicKeys, each as the driver reads it, and of
// Mask. The result for an ambiguous input is Mask alone.
func URL(s string) string {
	if p, ok := parse(s); ok && p.public != "" {
		return p.public
	}
	if s == "" {
		return ""
	}
	return Mask
}

// IsClear says whether a connection string is unambiguous. If it is not, a driver may
// take a part of a password for a host or a database, and name it in its errors.
func IsClear(s string) bool {
	_, ok := parse(s)
	return ok
}

// Text returns the text without the secrets of the connection strings among
// the inputs it was made from.
func Text(text string, inputs ...string) string {
	for _, s := range inputs {
		if !strings.Contains(s, "://") && !strings.Contains(s, "=") {
			continue
		}
		p, _ := parse(s)
		text = replace(text, s, URL(s))
		for _, secret := range p.hidden {
			text = replace(text, secret, Mask)
		}
	}
	return text
}

// shortest is the length of the shortest secret that is replaced in a text, in bytes:
// shorter ones occur in every other word.
const shortest = 4

// replace also finds the secret as %q writes it.
func replace(text, secret, with string) string {
	if len(secret) < shortest {
		return text
	}
	quoted := strconv.Quote(secret)
	return strings.ReplaceAll(strings.ReplaceAll(text, secret, with), quoted[1:len(quoted)-1], with)
}

// parts are the parts of a connection string.
type parts struct {
	public string
	hidden []string // the secrets, as written and as read
}

func (p *parts) hide(secrets ...string) { p.hidden = append(p.hidden, secrets...) }

// publicKeys are the parameters of Postgres that are no secret.
var publicKeys = []string{"host", "port", "user", "dbname", "database", "sslmode", "sslrootcert", "target_session_attrs"}

const host = `(\[[0-9A-Za-z:.%]+\]|[\pL\pN._%-]*)(:[0-9]*)?`

var (
	// hostList is what may follow the credentials: host, host:port, [IPv6]:port,
	// or the folder of a socket, with its slashes written as %2F.
	hostList = regexp.MustCompile(`^` + host + `(,` + host + `)*$`)
	// mislaid matches credentials that begin with hosts and a query: those whose
	// @ is part of the query.
	mislaid = regexp.MustCompile(`(^|@)[^:@?,]*(:[0-9]*)?(,[^:@?,]*(:[0-9]*)?)*\?`)
)

// parse returns false for an ambiguous string.
func parse(s string) (p parts, ok bool) {
	scheme, rest, _ := strings.Cut(s, "://")
	switch scheme {
	case "postgres", "postgresql", "http", "https":
		return parseURL(scheme, rest, strings.IndexByte)
	case "redis", "rediss", "redis+sentinel":
		return parseURL(scheme, strings.ReplaceAll(rest, ","+scheme+"://", ","), strings.LastIndexByte)
	}
	return parsePairs(s)
}

// parseURL reads what follows the scheme. indexAt finds the @ that ends the
// credentials, which contain no slash.
func parseURL(scheme, rest string, indexAt func(string, byte) int) (p parts, ok bool) {
	public := scheme + "://"
	authority, _, _ := strings.Cut(rest, "/")
	if at := indexAt(authority, '@'); at >= 0 {
		credentials := rest[:at]
		rest = rest[at+1:]
		user, password, both := strings.Cut(credentials, ":")
		if !both && strings.HasPrefix(scheme, "redis") { // a single part is the password
			user, password, both = "", user, true
		}
		name, err := url.PathUnescape(user)
		secret, err2 := url.PathUnescape(password)
		p.hide(password, secret)
		if err != nil || err2 != nil || strings.Contains(credentials, " ") || mislaid.MatchString(credentials) {
			return p, false
		}
		public += url.User(name).String()
		if both {
			public += ":" + Mask
		}
		public += "@"
	}
	if strings.ContainsAny(rest, "@ ") { // a password has an @, a slash or a blank in it
		return p, false
	}
	place, query, hasQuery := strings.Cut(rest, "?")
	where, path, hasPath := strings.Cut(place, "/")
	path, err := url.PathUnescape(path)
	if !hostList.MatchString(where) || err != nil {
		return p, false
	}
	public += where
	if hasPath {
		public += "/" + (&url.URL{Path: path}).EscapedPath()
	}
	if hasQuery && strings.HasPrefix(scheme, "postgres") {
		shown, ok := p.query(query)
		if !ok {
			return p, false
		}
		if shown != "" {
			public += "?" + shown
		}
	} else {
		p.hide(query)
	}
	p.public = public
	return p, true
}

// query returns the public parameters of a query of Postgres.
func (p *parts) query(query string) (public string, ok bool) {
	var shown []string
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		name, err := url.PathUnescape(key)
		text, err2 := url.PathUnescape(value)
		if err != nil || err2 != nil || strings.Count(pair, "=") != 1 {
			p.hide(pair)
			return "", false
		}
		if slices.Contains(publicKeys, name) {
			shown = append(shown, name+"="+strings.ReplaceAll(url.QueryEscape(text), "+", "%20"))
		} else {
			p.hide(value, text)
		}
	}
	return strings.Join(shown, "&"), true
}

// pair is a key and its value, quoted or not, in which a backslash escapes.
var pair = regexp.MustCompile(`(?s)^([^\s=]+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:(?:[^\s'\\]|\\.)(?:[^\s\\]|\\.)*)?)(?:\s|$))`)

var escaped = regexp.MustCompile(`(?s)\\(.)`)

// parsePairs reads Postgres's key=value pairs.
func parsePairs(s string) (p parts, ok bool) {
	const blanks = " \t\n\f\r"
	if strings.Contains(s, "\v") { // a blank too, but not for all
		p.hide(s)
		return p, false
	}
	var shown []string
	for rest := strings.Trim(s, blanks); rest != ""; {
		found := pair.FindStringSubmatch(rest)
		if found == nil {
			p.hide(s)
			return p, false
		}
		rest = strings.TrimLeft(rest[len(found[0]):], blanks)
		key, written := found[1], found[2]+found[3]
		value := escaped.ReplaceAllString(written, "$1")
		switch {
		case slices.Contains(publicKeys, key):
			shown = append(shown, key+"="+quote(value))
		default:
			p.hide(written, value)
			if key == "password" {
				shown = append(shown, key+"="+Mask)
			}
		}
	}
	p.public = strings.Join(shown, " ")
	return p, true
}

var plain = regexp.MustCompile(`^[^\s'\\]+$`)

// quote writes a value of a pair.
func quote(value string) string {
	if plain.MatchString(value) {
		return value
	}
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
}
