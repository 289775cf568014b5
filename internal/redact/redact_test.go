package redact_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/redact"
)

func TestURL(t *testing.T) {
	for in, want := range map[string]string{
		"":                                               "",
		"postgres://h/d":                                 "postgres://h/d",
		"postgresql://u:secret@h:5432/d":                 "postgresql://u:xxxxx@h:5432/d",
		"postgres://u@h":                                 "postgres://u@h",
		"postgres://u:sec!ret'%2f%7e,x:z@h/d":            "postgres://u:xxxxx@h/d",
		"postgres://u%2dv%40w:secret@h":                  "postgres://u%2dv%40w:xxxxx@h",
		"postgres://u:secret@a:1,[::1]:2,c/d":            "postgres://u:xxxxx@a:1,[::1]:2,c/d",
		"postgres://u:secret@%2Fvar%2Frun/d":             "postgres://u:xxxxx@%2Fvar%2Frun/d",
		"postgres:///d?host=/run&user=u&password=secret": "postgres:///d",
		"postgres://u:sec@ret@h/d":                       redact.Mask,
		"postgres://u:sec/ret@h/d":                       redact.Mask,
		"postgres://u:12/secret@h/d":                     redact.Mask,
		"postgres://u:12/secret?a=b@h/d":                 redact.Mask,
		"postgres://u:sec?ret@h/d":                       redact.Mask,
		"postgres://h:5432?password=x@secret":            redact.Mask,
		"postgres://u:secret":                            redact.Mask,
		"postgres://u:sec%ret@h/d":                       redact.Mask,
		"postgres://h/d?secret":                          redact.Mask,
		"host=h user=u password=secret dbname=d":         redact.Mask,
		"secret":                                         redact.Mask,
		"other://u:secret@h":                             redact.Mask,
		"redis://h":                                      "redis://h",
		"redis://secret@h:6379/0":                        "redis://:xxxxx@h:6379/0",
		"redis://:secret@a:1,b:2":                        "redis://:xxxxx@a:1,b:2",
		"rediss://u:sec@ret@h":                           redact.Mask,
		"redis://:sec/ret@h":                             redact.Mask,
		"redis://h:6379?password=secret":                 "redis://h:6379",
		"redis+sentinel://u:secret@a,b:2/m/0?x=secret":   "redis+sentinel://u:xxxxx@a,b:2/m/0",
		"http://u:secret@h:9090/x":                       "http://u:xxxxx@h:9090/x",
	} {
		t.Run(in, func(t *testing.T) {
			if got := redact.URL(in); got != want {
				t.Errorf("shown as %s, want %s", got, want)
			}
		})
	}
}

func TestText(t *testing.T) {
	const in = "postgres://u:se%21cret@h/d"
	for text, want := range map[string]string{
		"unexpected argument " + in:             "unexpected argument postgres://u:xxxxx@h/d",
		fmt.Sprintf("not a URL: %q", in):        `not a URL: "postgres://u:xxxxx@h/d"`,
		"the server said se!cret and se%21cret": "the server said xxxxx and xxxxx",
	} {
		if got := redact.Text(text, "--name", "x=y", in); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for in, want := range map[string]string{ // a value of what cannot be a secret, unless one is beside it
		"postgres://h/d?schema=public":                           "the schema public",
		"postgres://h/d?sslmode=require&schema=public":           "the schema public",
		"postgres://u:secret@h/d?schema=public":                  "the schema public",
		"postgres://u:public@h/d?schema=public":                  "the schema xxxxx",
		"postgres://h/d?password=se&schema=public":               "the schema xxxxx",
		"postgres://h/d?schema=public&sslpassword=secret":        "the schema xxxxx",
		"postgres://h/d?options=public":                          "the schema xxxxx",
		"postgres://h/d?Schema=public":                           "the schema xxxxx",
		"postgres://h/d?unknown=public":                          "the schema xxxxx",
		"redis+sentinel://h/m?schema=x&sentinel_password=public": "the schema xxxxx",
	} {
		if got := redact.Text("the schema public", in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	if got := redact.Text("unexpected argument PASSWORD='a\nb'", "PASSWORD='a\nb'"); strings.Contains(got, "a\nb") {
		t.Error(got)
	}
}

// fixed is text that may be shown whatever the secret is.
const fixed = "postgresql://uuuu:xxxxx@hhhh:5432,iiii:5432/dddd rediss+sentinel://uuuu:xxxxx@hhhh:5432,iiii:5432/mmmm/0 https://"

// leaks returns a piece of the secret, of four bytes or more, that is in the text.
func leaks(text, secret string) string {
	for i := 0; i+4 <= len(secret); i++ {
		if piece := secret[i : i+4]; strings.Contains(text, piece) && !strings.Contains(fixed, piece) {
			return piece
		}
	}
	return ""
}

// Nothing of a secret comes out, however it is written and whether or not a
// driver could read the result.
func FuzzNoSecretComesOut(f *testing.F) {
	for _, secret := range []string{"secret", "p@ssword", "12/secret", "a?secret", "a:secret@b,c", "%zzsecret", "it's secret", `back\slash\'`,
		"a#secret", "x&y=secret", "12?secret", "secret\n", "/?@secret"} {
		f.Add(secret)
	}
	f.Fuzz(func(t *testing.T, secret string) {
		escaped := url.QueryEscape(secret)
		var all []string
		for _, password := range []string{secret, escaped, url.UserPassword("", secret).String()[1:]} {
			all = append(all,
				"postgres://uuuu:"+password+"@hhhh/dddd",
				"postgresql://uuuu:"+password+"@hhhh:5432,iiii:5432/dddd?sslmode=require",
				"redis://uuuu:"+password+"@hhhh:5432/0",
				"redis://"+password+"@hhhh",
				"rediss://:"+password+"@hhhh:5432,iiii:5432",
				"redis+sentinel://uuuu:"+password+"@hhhh,iiii:5432/mmmm/0",
				"http://uuuu:"+password+"@hhhh:5432/")
		}
		for _, key := range []string{"password", "PASSWORD", "sslpassword", "passfile", "sslkey", "options", "servicefile"} {
			all = append(all, "postgres://uuuu@hhhh/dddd?"+key+"="+escaped+"&sslmode=require", "host=hhhh "+key+"="+secret+" dbname=dddd")
		}
		all = append(all, "redis+sentinel://hhhh/mmmm?sentinel_username=uuuu&sentinel_password="+escaped, "redis://hhhh?password="+escaped)
		for _, s := range all {
			if piece := leaks(redact.URL(s), secret); piece != "" {
				t.Errorf("%q is shown as %q, with %q", s, redact.URL(s), piece)
			}
			if piece := leaks(redact.Text(fmt.Sprintf("%s or %q: wrong", s, s), s), secret); piece != "" && len(secret) >= 4 {
				t.Errorf("%q in a text: %q", s, redact.Text(fmt.Sprintf("%s or %q: wrong", s, s), s))
			}
		}
	})
}

// What is shown has the user, hosts and database that the driver reads.
func FuzzURLIsReadAsTheDriverReadsIt(f *testing.F) {
	for _, s := range []string{"postgres://u:secret@h:1,i:2/d", "postgres://u%40v:secret@[::1]/a%2fb", "postgres:///d", "postgres://u:p@,h/d",
		"postgresql://u:x@%2frun"} {
		f.Add(s)
	}
	for _, name := range []string{"PGPASSWORD", "PGSERVICE", "PGHOST", "PGUSER", "PGDATABASE", "PGPORT"} {
		f.Setenv(name, "")
	}
	f.Fuzz(func(t *testing.T, s string) {
		read, err := pgconn.ParseConfig(s)
		if err != nil || !redact.IsClear(s) || strings.Contains(s, "?") { // parameters may name another host
			return
		}
		again, err := pgconn.ParseConfig(redact.URL(s))
		if err != nil {
			t.Fatalf("%q is shown as %q: %v", s, redact.URL(s), err)
		}
		if again.Host != read.Host || again.Port != read.Port || again.User != read.User || again.Database != read.Database ||
			len(again.Fallbacks) != len(read.Fallbacks) {
			t.Errorf("%q is shown as %q, which is another server, user or database", s, redact.URL(s))
		}
	})
}
