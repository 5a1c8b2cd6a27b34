"""The daemon that owns all sessions. A map, from the ground up; no module imports a later one.

values, settings     the nouns, and what can be configured
timer                one task that waits for the timers of all sessions
descriptors          how many there are, and what for
heap                 memory goes back to the system
pace                 how fast one client is listened to
ending               how the supervisor is to end
events               what happens, told to whoever listens
journald             lines of the log as systemd's journal takes them
logfile              the log, which nothing it goes to can stop
logflood             lines of it that strangers can cause as often as they like
config               reads and explains `config.toml`
flakes               references to what Nix builds
hostrules            which hosts a pattern means
loopback             where MCP over HTTP may listen
boundary             what clients of one listener are kept to
policy               what one session may see, change, reach and use
locales              the user's language and time zone, for jails
denials/             which rule of it stopped code, in one line
limits               what is checked of a request first
fences               Markdown around code
pending              calls of an environment that is being made wait
poolpolicy           how many sessions should be kept ready: a pure function
demand, habits       how often sessions are taken, and which ones by whom
hostmemory           how much memory there is for spares
survival/            descriptors that others keep, for sessions to outlive the supervisor
catalog              what there is to run in at this moment, and for whom
environments         the host's interpreters
watching/            what lies in the file system, looked at again when it changes
artifacts/           environments that Nix built
headtail             the beginning and the end of a long text
project              which directory may be mounted
monitors/            what ends a program of the host with all it started
nix/                 Nix, found, run, watched and stopped
kernelfacts          what the kernel says about a process
jail/                how one jail is launched and ended
cgroups/             limits of a session as a whole, and which of them was reached
templates/           sessions as forks of a running Python
devshell/            a project's own development shell as an environment
agentframes          what comes out of a jail, checked
agentlink            frames to and from one agent
requests             questions to one agent, and their answers
proxy/               the way out of sessions: a filtering proxy
lifecycle            a session's states as one table
transcripts/         what sessions have run, for people to read
conversation         one jail and its agent, from launch to the last process
disuse               when a session ends because nobody uses it
runs                 the executions of one jail, one after another
session              one jail from its start to its end, and what ends it
pool                 sessions kept ready
keeping              sessions are handed to whoever keeps descriptors
endbook              how sessions ended, for the next supervisor to tell
takeover             what an earlier supervisor has left there
resumption           its sessions, and what was under way in them
reconfiguration      a changed `config.toml` under a running supervisor
places               room for so many sessions, and those that wait for some
directory            sessions by id and name
listing              rows of lists of sessions
changes/             what a session has made of a copied project
files                files to and from a session
audit/               who ran what, in a file of its own
builds/              environments that nsm has Nix build
provision            everything that environments come from, behind one door
retrying             code that is sent again after a lost connection: it is run once
comers               clients that have just come: what is kept ready for them
fleet                all sessions: how they come, are kept, and go
registry             names, scopes, limits, reasons; the one way to run code
bridge/              chosen programs of the host, for agents
boxes/               sockets for agents in boxes
pressure             when the machine is short of memory
draining             nothing new is begun, and what runs comes to its end
telemetry/           what is counted, and how it is told
control/             the control socket: operations for command line and API
mcp/                 the endpoint that models see
http/                the same over HTTP, for who has the token
reception            whoever connects is served here
signals              how an end is asked for, or other settings
servicemanager       the socket that systemd passes, and what it is told
socketguard          keeps the socket where clients look for it
servicestatus        what the service manager is told while the supervisor runs
limitchecks          rows of the doctor's table
hostchecks/          what of a host commonly stands in nsm's way
copychecks           whether projects can be copied on write here
doctor               what nsm needs here, and how to get it
failedstart          who waits for a supervisor that cannot start is told why
foothold             its lock and its socket, and what it was handed there
setup                what all parts are to know, found out before the event loop begins
ground               what outlasts sessions
core                 what clients' requests work on, and who receives clients
daemon, main         keeps these running until asked to end; command line
"""
