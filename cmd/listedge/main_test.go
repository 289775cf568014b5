package main

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// program is `listedge …`, which has ended.
type program struct {
	code     int
	out, err strings.Builder
}

// start runs a command that needs no server, to its end.
func start(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{}
	p.code = run(t.Context(), args, &p.out, &p.err)
	return p
}

// command runs a command that succeeds and returns what it printed.
func command(t *testing.T, args ...string) string {
	t.Helper()
	p := start(t, args...)
	if p.code != exitFine {
		t.Fatalf("listedge %s: exit %d: %s", strings.Join(args, " "), p.code, p.err.String())
	}
	return p.out.String()
}

func TestRatesOfUpToSixDecimalsAreAccepted(t *testing.T) {
	for _, rate := range []float64{0, 1e-6, 0.1, 2.000001, 1e9} {
		if err := (&LimitFlags{Rate: &rate}).Validate(); err != nil {
			t.Errorf("%v: %v", rate, err)
		}
	}
}

// An error says what to do about it, in one line.
func TestErrorsSayWhatToDo(t *testing.T) {
	t.Setenv("LISTEDGE_DATABASE_URL", "postgres://127.0.0.1:1/none")
	const id = "00000000-0000-0000-0000-000000000001"
	for line, want := range map[string]string{
		"brew":      "unexpected argument brew, which is no command here: --help lists them",
		"keys brew": "unexpected argument brew, which is no command here: --help lists them",
		"keys revoke lk_abcdefgh": "<id>: must be an id (a UUID), as `listedge workspaces list` and `listedge keys list` print it; " +
			"a key or a name is none",
		"keys list --workspace shop":                                   "--workspace: must be an id",
		"keys update --rate 3":                                         "the id (<id>) is missing: --help has an example",
		"keys list --workspace":                                        "--workspace needs a value",
		"usage":                                                        "--workspace",
		"keys create":                                                  "--workspace",
		"workspaces create":                                            "--name",
		"workspaces create --name x --burst 5":                         "--burst needs --rate",
		"workspaces create --name x --rate=NaN":                        "finite",
		"workspaces create --name x --rate=0.0000005":                  "six decimals",
		"workspaces create --name x --quota 5":                         "N/day or N/month",
		"workspaces create --name x --quota 0/day":                     "from 1 to 4000000000",
		"workspaces update --burst 0 " + id:                            "--burst 0 is below 1",
		"workspaces update " + id:                                      "nothing to update: give --rate, --burst, --quota or --tenant",
		"keys update " + id:                                            "nothing to update",
		"keys list --unused-for=-1d --workspace " + id:                 "--unused-for: must be a positive duration",
		"audit --limit all":                                            "--limit: must be a whole number of at most 64 bits in decimal digits, and is \"all\"\n",
		"audit --limit=010":                                            "--limit: must be a whole number of at most 64 bits in decimal digits, and is \"010\"\n",
		"audit --limit=0x10":                                           "--limit: must be a whole number",
		"serve --print-config --max-connections=1_6":                   "--max-connections: must be a whole number",
		"keys update --burst=0b1 " + id:                                "--burst: must be a whole number of at most 32 bits",
		"keys update --burst=3e9 " + id:                                "--burst: must be a whole number of at most 32 bits in decimal digits, and is \"3e9\"\n",
		"keys update --rate=x " + id:                                   "--rate: must be a number, and is \"x\"\n",
		"keys update --rate=-1 " + id:                                  ": --rate -1 is negative\n",
		"serve --log-level trace":                                      "--log-level must be one of \"info\",\"warn\",\"error\" but got \"trace\"\n",
		"serve --drain soon":                                           "--drain: must be a duration like 500ms or 2h, and is \"soon\"\n",
		"serve --trusted-proxies 10":                                   "--trusted-proxies: must be a network like 10.0.0.0/8, and is \"10\"\n",
		"audit --database-url http://h":                                "--database-url: not postgres://user:password@host:port/database",
		"serve --replica-url redis://h":                                "--replica-url: not postgres://user:password@host:port/database",
		"keys list --workspace " + id:                                  "check that --database-url names Postgres, and that it runs (`listedge doctor`)",
		"migrate status":                                               "check that --database-url names Postgres",
		"migrate drop-slot":                                            "check that --database-url names Postgres",
		"migrate drop-slot --replication-url postgres://127.0.0.1:1/n": "check that --replication-url names Postgres",
		"ready --node 127.0.0.1:1":                                     "check that --node names the admin listener of a node, and that it runs",
		"explain x --node http://127.0.0.1:1":                          "check that --node names the admin listener",
	} {
		t.Run(line, func(t *testing.T) {
			if p := start(t, strings.Fields(line)...); p.code == exitFine || !strings.Contains(p.err.String(), want) || strings.Count(p.err.String(), "\n") != 1 {
				t.Errorf("exit %d: %s", p.code, p.err.String())
			}
		})
	}
}

// What a flag cannot use is refused before anything is done. The error names the flag.
func TestFlagsRefuseWhatTheyCannotUse(t *testing.T) {
	t.Setenv("LISTEDGE_DATABASE_URL", "postgres://h/d")
	const id = "00000000-0000-0000-0000-000000000001"
	for command, all := range map[string]string{ // | is between sets of arguments, the first of which is wrong
		"serve --print-config": "--cache-ttl never | --cache-memory lots | --cache-memory 1kB | --cache-memory 1000TiB | --max-stale=-1s | " +
			"--max-stale 1000000h | --database-connections 0 | --database-connections 40000 | --query-timeout 0s | --query-timeout 600h | " +
			"--freshness-bound 1ms | --log-format xml | --limiter-failure-mode never | --database-url= | --nothing",
		"migrate up":              "--database-url=",
		"workspaces create":       "--name=",
		"workspaces update " + id: "--quota 5/week | --quota=",
		"keys create":             "--scopes= --workspace " + id + " | --scopes items:write --workspace " + id + " | --expires-in -1h --workspace " + id,
		"keys rotate " + id:       "--overlap=-1h | --overlap soon | --expires-in 0d | --actor= | --actor " + strings.Repeat("x", 129) + " | --actor x\x1b[2J",
		"audit":                   "--limit 0 | --since 0h | --since 1000000000d | --key me",
		"usage --workspace " + id: "--since 0s | --since 36d | --since soon",
		"dev":                     "--nodes 0 | --nodes 9",
	} {
		for arguments := range strings.SplitSeq(all, " | ") {
			t.Run(command+" "+arguments, func(t *testing.T) {
				p := start(t, strings.Fields(command+" "+arguments)...)
				if flag := strings.FieldsFunc(arguments, func(r rune) bool { return r == ' ' || r == '=' })[0]; p.code != exitUsage ||
					!strings.Contains(p.err.String(), flag) || strings.Count(p.err.String(), "\n") != 1 || p.out.String() != "" {
					t.Errorf("exit %d: %s", p.code, p.err.String())
				}
			})
		}
	}
}

// Each command's help has an example, which the program accepts.
func TestExamples(t *testing.T) {
	t.Setenv("LISTEDGE_DATABASE_URL", "postgres://h/d")
	var c cli
	parser, _ := newParser(&c, io.Discard, io.Discard)
	for _, leaf := range parser.Model.Leaves(true) {
		path := strings.TrimPrefix(leaf.Path(), "listedge ")
		help := command(t, append(strings.Fields(path), "--help")...)
		found := 0
		for line := range strings.Lines(help) {
			example, ok := strings.CutPrefix(strings.TrimSpace(line), "listedge "+path)
			if !ok || strings.HasPrefix(strings.TrimSpace(line), "Usage:") {
				continue
			}
			found++
			words := strings.Fields(path + strings.ReplaceAll(example, " ID", " 00000000-0000-0000-0000-000000000001"))
			var c cli
			parser, _ := newParser(&c, io.Discard, io.Discard)
			if _, err := parser.Parse(words); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
		if found == 0 {
			t.Errorf("%s: no example:\n%s", path, help)
		}
	}
}

// Periods may be in days.
func TestPeriods(t *testing.T) {
	for text, want := range map[string]string{
		"7d": "168h0m0s", "36h": "36h0m0s", "1h30m": "1h30m0s", "1d12h": "36h0m0s", "106751d": "2562024h0m0s",
		"106752d": "", "0d": "", "0": "", "-1d": "", "d": "", "7": "", "": "",
	} {
		var p period
		if err := p.UnmarshalText([]byte(text)); (err == nil) != (want != "") || err == nil && time.Duration(p).String() != want {
			t.Errorf("%q: %s, %v", text, time.Duration(p), err)
		}
	}
}

// stuck is standard error whose reader hangs until the channel is closed.
type stuck chan struct{}

func (s stuck) Write(b []byte) (int, error) {
	<-s
	return len(b), nil
}

// A command that fails ends, also if nobody reads what it says.
func TestAnErrorThatNobodyReadsDelaysNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errs := make(stuck)
		if code := run(t.Context(), []string{"brew"}, io.Discard, errs); code != exitUsage {
			t.Errorf("exit %d", code)
		}
		close(errs)
	})
}
