#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem top on a pseudo terminal: what it draws, its keys, sizes, signals, terminals that it
# cannot draw on, and processes that end. vm/live.sh has the module.
. "$(dirname "$0")/tools-lib.sh"

export HETMEM_DRIVER=soft
unset NO_COLOR COLUMNS LINES

cat >"$tmp/publisher.c" <<'EOS'
#include <hetmem.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct hetmem_resource *pool;
	struct hetmem *hm;
	void *p;

	(void)argc;
	prctl(PR_SET_NAME, argv[1]);
	if (hetmem_open(&hm, NULL) || hetmem_resource_create(hm, argv[2], &pool) ||
	    hetmem_alloc(pool, 3 << 20, 0, HETMEM_STREAM_HOST, &p))
		return 1;
	puts("ready");
	fflush(stdout);
	pause();
	return 0;
}
EOS
check 'a program that publishes' gcc -O1 -Iinclude -Iinclude/uapi -o "$tmp/publisher" "$tmp/publisher.c" \
	-Lbuild -lhetmem -Wl,-rpath,"$PWD/build"
# start NAME SPEC; $pid.
start()
{
	: >"$tmp/log"
	"$tmp/publisher" "$1" "$2" >"$tmp/log" 2>&1 </dev/null &
	pid=$!
	children+=("$pid")
	disown "$pid"
	wait_for grep -q ready "$tmp/log"
}

# A terminal that runs one program. Steps wait for what must come to the screen: nothing waits
# for a time. screen() is what an xterm would show, of the sequences that top uses.
cat >"$tmp/drive.py" <<'EOS'
import fcntl, os, pty, re, select, signal, struct, sys, termios, time

class Top:
    def __init__(self, *args, rows=24, columns=100, env=None):
        self.raw, self.status, self.at = b'', None, 0
        self.pid, self.fd = pty.fork()
        if not self.pid:
            size(0, rows, columns)
            os.environ.update({'TERM': 'xterm', **(env or {})})
            os.execv(sys.argv[1], ['hetmem', 'top', *args])

    def read(self, seconds=0.1):
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.raw += data
        return bool(data)

    def wait(self, text, what=''):
        """What is written from the last key on, until it has @text."""
        end = time.monotonic() + 120
        while not re.search(text, plain(self.raw[self.at:])):
            if not self.read() or time.monotonic() > end:
                raise SystemExit('no %r in %r' % (text, plain(self.raw[self.at:])[-3000:]))
        return plain(self.raw[self.at:])

    def press(self, keys):
        self.at = len(self.raw)
        os.write(self.fd, keys.encode())

    def resize(self, rows, columns):
        self.at = len(self.raw)
        size(self.fd, rows, columns)

    def end(self, sig=None):
        """Its status; the terminal must be as it was."""
        if sig:
            os.kill(self.pid, sig)
        while self.read(1):
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
        while self.read(0.2) and select.select([self.fd], [], [], 0)[0]:
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def restored(self):
        flags = termios.tcgetattr(self.fd)[3]
        return flags & termios.ECHO and flags & termios.ICANON and \
            self.raw.rfind(b'\x1b[?1049l') > self.raw.rfind(b'\x1b[?1049h')

def size(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))

def plain(raw):
    """Without sequences: moves of the cursor are blanks."""
    text = re.sub(rb'\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][0-9A-Z]|\x1b[=>78MH]', b' ', raw)
    return text.decode('latin-1')
EOS

# draws NAME CODE: CODE of python, with Top, succeeds.
draws()
{
	printf 'exec(open("%s").read())\n%s\n' "$tmp/drive.py" "$2" >"$tmp/step.py"
	# time: steps wait for 120 s at most, and only a test that fails waits so long
	timeout 300 python3 "$tmp/step.py" "$hetmem" "$first" "$second" >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
	[ $status -eq 0 ]
	judge "$1"
}

# Tests that run beside this one publish too: a digit sorts these two before all of them.
start 0alpha 'pool(device,max=64M,tag=model)'
first=$pid
start 0beta 'pool(host)'
second=$pid

draws 'processes, pools, and q ends it' '
t = Top("--sort", "name")
t.wait("alpha"); t.wait("beta"); t.wait("device +0 +3 MiB +4 MiB +64 MiB.*model"); t.wait("sort: name")
t.press("q")
assert t.end() == 0 and t.restored()'
draws 'another process is selected, and its pools are shown' '
t = Top("--sort", "name")
t.wait("device +0 ")
t.press("j"); t.wait("host +-1 ")
t.press("k"); t.wait("device +0 ")
t.press("\x1bOB"); t.wait("host +-1 ")
t.press("q"); assert t.end() == 0'
draws 'sorts by each column' '
t = Top("--sort", "pid")
t.wait("sort: pid")
for name in ("name", "device", "host", "moves", "thrash", "pid"):
    t.press("s"); t.wait(name)
t.press("q"); assert t.end() == 0'
draws 'a filter' '
t = Top("--sort", "name")
t.wait("beta")
t.press("/"); t.wait("only names that contain")
t.press("zzz"); t.wait("no process has such a name")
t.press("\x7f\x7f\x7fbet"); t.wait("host +-1 ")
t.press("\r"); t.wait("only: bet")
t.press("/\x1b"); t.wait("alpha")
t.press("q"); assert t.end() == 0'
draws '? shows the keys, and any key ends that' '
t = Top("--sort", "name")
t.wait("alpha.*\\? keys")
t.press("?"); t.wait("only names that contain a text.*look now.*any key: back")
t.press("q"); t.wait("alpha.*sort: name")
t.press("?"); t.wait("any key")
t.resize(3, 40); t.wait("sort by the next")
t.press("x"); t.wait("sort: name")
t.press("q"); assert t.end() == 0'
draws 'what moves memory is asked first' '
t = Top("--sort", "name")
t.wait("alpha")
t.press("b"); t.wait("pull all memory of process %s back to the host\\? y or n" % sys.argv[2])
t.press("n"); t.wait("nothing was done")
t.press("p"); t.wait("prefetch the memory of process %s" % sys.argv[2])
t.press("q"); t.wait("nothing was done")
t.press("b"); t.wait("y or n")
t.press("y"); t.wait("process %s, read page by page: \\d+ of \\d+ pages" % sys.argv[2])
t.press("p"); t.wait("y or n")
t.press("y"); t.wait("hetmem prefetch: ")
t.press("q"); assert t.end() == 0'
draws 'sizes, down to one character' '
t = Top("--interval", "1")
t.wait("alpha")
for rows, columns in ((10, 40), (1, 1), (2, 500), (500, 2), (3, 10), (5, 5), (200, 300)):
    t.resize(rows, columns)
    for _ in range(8):
        t.read(0.1)
    t.press("j")
t.resize(24, 100); t.wait("alpha")
t.press("q"); assert t.end() == 0 and t.restored()'
for signal in INT TERM HUP QUIT; do
	draws "SIG$signal restores the terminal" "
t = Top()
t.wait('alpha')
assert t.end(signal.SIG$signal) == -signal.SIG$signal and t.restored()"
done
draws 'a terminal that goes away ends it' '
t = Top()
t.wait("alpha")
os.close(t.fd)
while not os.waitpid(t.pid, os.WNOHANG)[0]: time.sleep(0.1)'
draws 'so does the end of the keyboard alone' '
mine, theirs = pty.openpty()
keep = os.dup(0)
os.dup2(theirs, 0)
os.close(theirs)
fork = pty.fork
def split():
    keys = os.dup(0)
    pid, fd = fork()
    if not pid:
        os.dup2(keys, 0)
        os.close(mine)
    os.close(keys)
    return pid, fd
pty.fork = split
t = Top("--interval", "3600")
t.wait("alpha")
os.dup2(keep, 0)
os.close(mine)
t.end()'
draws 'random keys' '
import random
random.seed(1)
t = Top("--interval", "1")
t.wait("alpha")
for _ in range(300):
    t.press(random.choice("jks/bn p\x1b\r\x7fxyz\t\x01\x1b[A\x1b[Z\xe4"))
    t.read(0)
t.press("\x1b"); t.read(0.5)
t.press("\x1b"); t.read(0.5)
t.press("n"); t.read(0.5)
t.press("q")
assert t.end() == 0 and t.restored()'

# No colour, and nothing but ASCII, in whatever language.
draws 'ASCII without colours' '
for env in ({"LANG": "C"}, {"LANG": "C", "NO_COLOR": "1"}, {"LC_ALL": "C.UTF-8"}, {"TERM": "vt100"}):
    t = Top(env=env)
    t.wait("alpha"); t.wait("sort:")
    t.press("q"); assert t.end() == 0
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9]m|\x1b\[[0-9;]*4[0-9]m", t.raw), t.raw
    assert not re.search(rb"[\x80-\xff]", t.raw)'
for term in dumb '' frobnicate; do
	draws "TERM='$term': one line, exit 2" "
t = Top(env={'TERM': '$term'})
text = t.wait('hetmem top: .*\n')
assert 'cannot be drawn on' in text and text.count('\n') == 1 and t.end() == 2"
done
wrong 'no terminal' "needs a terminal; type 'hetmem status'" top
wrong 'no time' 'is not a time from 1 to 3600' top --interval 0
wrong 'no column' "'frob' is not pid, name" top --sort frob
wrong 'an argument' "'x' is not an option" top x
wrong 'an unknown option' "unknown option '--frob'" top --frob

start $'e\033[2J\nvil\xff' 'pool(host)'
evil=$pid
draws 'control characters of a name are escaped' '
t = Top("--interval", "1")
t.wait(r"e\\x1b\[2J\\x0avi")
t.press("q"); assert t.end() == 0
assert not re.search(rb"e\x1b\[2J\nvi|\xff", t.raw)'
kill "$evil"
wait_for sh -c "! kill -0 $evil 2>/dev/null"
draws 'processes that end' '
t = Top("--sort", "name", "--interval", "1")
t.wait("alpha")
t.press("b"); t.wait("y or n")
os.kill(int(sys.argv[2]), signal.SIGKILL)
while os.path.exists("/proc/%s/fd/0" % sys.argv[2]): time.sleep(0.1)
t.press("y"); t.wait("process %s has ended|there is no process|hetmem pullback: " % sys.argv[2])
os.kill(int(sys.argv[3]), signal.SIGKILL)
t.press(" "); t.read(0.5)
t.press("b"); t.read(0.5)
# Another process may have been asked about.
t.press("n"); t.read(0.5)
t.press("q"); assert t.end() == 0 and t.restored()
# Other processes of this machine may use hetmem.
t = Top("--sort", "name")
text = t.wait("sort: name|no process uses hetmem")
assert "alpha" not in text and "beta" not in text, text
t.press("q"); assert t.end() == 0'

# Device memory of all processes, by a stand-in for NVML.
mkdir "$tmp/nvml"
check 'a stand-in for NVML' gcc -shared -fPIC -O1 -o "$tmp/nvml/libnvidia-ml.so.1" selftests/t/nvml.c
sleep infinity &
plain=$!
children+=("$plain")
disown "$plain"
printf 'gpu 85899345920 3221225472 NVIDIA H100\nuse compute 0 %s 2147483648\n' "$plain" >"$tmp/nvml.txt"
draws 'a GPU, and a process without hetmem on it' "
t = Top(columns=120, env={'LD_LIBRARY_PATH': '$tmp/nvml', 'STAND_IN_NVML': '$tmp/nvml.txt'})
t.wait(r'GPU 0 .NVIDIA H100.: 3 GiB of 80 GiB used')
t.wait(r'PID +NAME +GPU +ON DEVICE')
t.wait(r'$plain +sleep +2 GiB +- ')
t.press('q')
assert t.end() == 0 and t.restored()"
check 'without ncurses it is built' make -s B="$tmp/build" CFLAGS=-O0 CC="$PWD/selftests/t/gcc-without curses.h" "$tmp/build/hetmem"
hetmem=$tmp/build/hetmem
wrong 'and says so' "built without ncurses; type 'apt-get install libncurses-dev'" top
done_testing
