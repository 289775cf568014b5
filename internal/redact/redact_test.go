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
		"postgres://u:sec!ret'%2f%7e,x?y:z@h/d":          "postgres://u:xxxxx@h/d",
		"postgres://u%2dv%40w:secret@h":                  "postgres://u-v%40w:xxxxx@h",
		"postgres://u:secret@a:1,[::1]:2,c/d":            "postgres://u:xxxxx@a:1,[::1]:2,c/d",
		"postgres://u:secret@%2Fvar%2Frun/d":             "postgres://u:xxxxx@%2Fvar%2Frun/d",
		"postgres:///d?host=/run&user=u&password=secret": "postgres:///d?host=%2Frun&user=u",
		"postgres://h/d?sslmode=require&sslpassword=secret&sslkey=secret&passfile=/secret&PASSWORD=secret": "postgres://h/d?sslmode=require",
		"postgres://u:sec@ret@h/d":                                    redact.Mask,
		"postgres://u:sec/ret@h/d":                                    redact.Mask,
		"postgres://u:12/secret@h/d":                                  redact.Mask,
		"postgres://u:12/secret?a=b@h/d":                              redact.Mask,
		"postgres://h:5432?password=x@secret":                         redact.Mask,
		"postgres://u:secret":                                         redact.Mask,
		"postgres://u:sec%ret@h/d":                                    redact.Mask,
		"postgres://h/d?secret":                                       redact.Mask,
		"host=h user=u password=secret dbname=d":                      "host=h user=u password=xxxxx dbname=d",
		`host=h password='sec\'ret it' sslmode=require port = 1`:      "host=h password=xxxxx sslmode=require port=1",
		`password=sec\ ret dbname='it\'s'`:                            `password=xxxxx dbname='it\'s'`,
		"host=h PASSWORD=secret sslpassword=secret passfile='secret'": "host=h",
		"password='sec''ret' host=h":                                  redact.Mask,
		"password='secret host=h":                                     redact.Mask,
		"password=sec ret host=h":                                     redact.Mask,
		"host=h\vpassword=secret":                                     redact.Mask,
		"service=secret":                                              redact.Mask,
		"secret":                                                      redact.Mask,
		"other://u:secret@h":                                          redact.Mask,
		"redis://h":                                                   "redis://h",
		"redis://secret@h:6379/0":                                     "redis://:xxxxx@h:6379/0",
		"rediss://u:sec@ret!@h":                                       "rediss://u:xxxxx@h",
		"redis://:sec/ret@h":                                          redact.Mask,
		"redis://:secret@a:1,b:2":                                     "redis://:xxxxx@a:1,b:2",
		"redis://:secret@a:1,redis://:secret@b:2":                     "redis://:xxxxx@b:2",
		"redis://h:6379?password=secret":                              "redis://h:6379",
		"redis://h?password=x@secret":                                 redact.Mask,
		"redis+sentinel://u:secret@a,b:2/m/0?sentinel_password=secret&sentinel_username=secret": "redis+sentinel://u:xxxxx@a,b:2/m/0",
		"redis+sentinel://u:12/secret@h/m": redact.Mask,
		"http://u:secret@h:9090/x?secret":  "http://u:xxxxx@h:9090/x",
	} {
		if got := redact.URL(in); got != want {
			t.Errorf("%s: shown as %s, want %s", in, got, want)
		}
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
	if got := redact.Text("unexpected argument PASSWORD='a\nb'", "PASSWORD='a\nb'"); strings.Contains(got, "a\nb") {
		t.Error(got)
	}
}

// fixed is text that may be shown whatever the secret is.
const fixed = "postgresql://uuuu:xxxxx@hhhh:5432,iiii:5432/dddd?sslmode=require&host=hhhh&user=uuuu&dbname=dddd database=dddd port=5432 password=xxxxx " +
	"sslrootcert target_session_attrs rediss+sentinel://uuuu:xxxxx@hhhh:5432,iiii:5432/mmmm/0 https://"

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
	for _, secret := range []string{"secret", "p@ssword", "12/secret", "a?secret", "a:secret@b,c", "%zzsecret", "it's secret", `back\slash\'`, "a#secret", "x&y=secret", "12?secret", "secret\n", "/?@secret"} {
		f.Add(secret)
	}
	f.Fuzz(func(t *testing.T, secret string) {
		escaped := url.QueryEscape(secret)
		quoted := "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(secret) + "'"
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
			all = append(all, "postgres://uuuu@hhhh/dddd?"+key+"="+escaped+"&sslmode=require", "host=hhhh "+key+"="+quoted+" dbname=dddd")
			if !strings.ContainsAny(secret, " \t\n\v\f\r\u0085\u00a0") {
				all = append(all, "host=hhhh "+key+"="+secret+" dbname=dddd")
			}
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

// Whatever the driver takes for a password is not shown, and what is shown is
// read as the same user, hosts and database.
func FuzzURLIsReadAsTheDriverReadsIt(f *testing.F) {
	for _, s := range []string{"postgres://u:secret@h:1,i:2/d?password=other1&sslmode=require", "host=h user=u password='it\\'s' dbname=d", "postgres://u%40v:secret@[::1]/a%2fb?host=/x&dbname=y",
		"password='a'host=h", "user=u\\ v host='' password=abcd", "postgres:///?user=u", "host=h port=1 PASSWORD=abcd", "host=h\vpassword=abcd", "\u00a0host=h\u0085password=abcd"} {
		f.Add(s)
	}
	for _, name := range []string{"PGPASSWORD", "PGSERVICE", "PGHOST", "PGUSER", "PGDATABASE", "PGPORT"} {
		f.Setenv(name, "")
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(s, "service") || strings.Contains(s, "file") || strings.Contains(s, "ssl") { // reads files
			return
		}
		read, err := pgconn.ParseConfig(s)
		shown := redact.URL(s)
		if err != nil || shown == redact.Mask || shown == "" {
			return
		}
		again, err := pgconn.ParseConfig(shown)
		if err != nil {
			t.Fatalf("%q is shown as %q: %v", s, shown, err)
		}
		if again.Host != read.Host || again.Port != read.Port || again.User != read.User || again.Database != read.Database || len(again.Fallbacks) != len(read.Fallbacks) {
			t.Errorf("%q is shown as %q, which is another server, user or database", s, shown)
		}
		public := fmt.Sprint(fixed, read.Host, read.Port, read.User, read.Database)
		for _, other := range read.Fallbacks {
			public += fmt.Sprint(" ", other.Host, other.Port)
		}
		secrets := []string{read.Password}
		for _, value := range read.RuntimeParams {
			secrets = append(secrets, value)
		}
		for _, secret := range secrets {
			if len(secret) >= 4 && strings.Contains(shown, secret) && !strings.Contains(public, secret) {
				t.Errorf("%q is shown as %q, with %q", s, shown, secret)
			}
		}
	})
}
