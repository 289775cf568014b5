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

const host = `(?:\[[0-9A-Za-z:.%]+\]|[\pL\pN._%-]*)(?::[0-9]*)?`

// address matches a URL of Postgres, Redis or HTTP: scheme, credentials, hosts with ports,
// database, parameters. An @ ends the credentials and is nowhere else: in any other URL, a
// driver may take a part of the password for a host or a database.
var address = regexp.MustCompile(`^((?:postgres(?:ql)?|redis(?:s|\+sentinel)?|https?)://)(?:([^@/?#\s]*)@)?(` +
	host + `(?:,` + host + `)*(?:/[^@?#\s]*)?)(?:\?((?:[^@#=&\s]+=[^@#=&\s]*(?:&|$))*))?$`)

// harmless are the parameters of a URL whose values are no secrets.
var harmless = []string{"channel_binding", "gssencmode", "hostaddr", "schema", "sslmode", "target_session_attrs"}

// URL returns the scheme, user, hosts, ports and database of a URL of Postgres, Redis or
// HTTP. It returns Mask for other text; empty text stays empty.
func URL(s string) string {
	if public, _, ok := parse(s); ok || s == "" {
		return public
	}
	return Mask
}

// IsClear says whether the text is a URL that can be read in only one way.
func IsClear(s string) bool {
	_, _, ok := parse(s)
	return ok
}

// Text returns the text without the secrets of the URLs among the inputs it was made from.
func Text(text string, inputs ...string) string {
	for _, s := range inputs {
		if strings.Contains(s, "://") || strings.Contains(s, "=") {
			_, secrets, _ := parse(s)
			text = replace(text, s, URL(s))
			for _, secret := range secrets {
				text = replace(text, secret, Mask)
			}
		}
	}
	return text
}

// replace replaces a secret of four bytes or more, also as %q writes it. Shorter ones would be
// found in other words.
func replace(text, secret, with string) string {
	if len(secret) < 4 {
		return text
	}
	quoted := strconv.Quote(secret)
	return strings.ReplaceAll(strings.ReplaceAll(text, secret, with), quoted[1:len(quoted)-1], with)
}

// mayBeSecret says whether the value of a parameter, name=value, may be a secret.
func mayBeSecret(parameter string) bool {
	name, _, _ := strings.Cut(parameter, "=")
	return !slices.Contains(harmless, name)
}

// parse returns what of a URL may be shown, and its secrets, as written and unescaped.
func parse(s string) (public string, secrets []string, ok bool) {
	found := address.FindStringSubmatch(s)
	if found == nil {
		return "", nil, false
	}
	scheme, credentials, place, parameters := found[1], found[2], found[3], found[4]
	user, password, both := strings.Cut(credentials, ":")
	if !both && strings.HasPrefix(scheme, "redis") { // a single part is the password
		user, password, both = "", credentials, credentials != ""
	}
	if both {
		user += ":" + Mask
	}
	if user != "" {
		user += "@"
	}
	all := strings.FieldsFunc(parameters, func(c rune) bool { return c == '&' })
	hidden := slices.ContainsFunc(all, mayBeSecret) // all: what follows an & may be a part of a secret
	for i, written := range append(all, "="+password) {
		_, value, _ := strings.Cut(written, "=")
		read, err := url.PathUnescape(value)
		if err != nil {
			return "", nil, false
		}
		if hidden || i == len(all) {
			secrets = append(secrets, value, read)
		}
	}
	return scheme + user + place, secrets, true
}
