# Knowledge distillation on CIFAR-10: soft targets + feature matching
# run me with:  python distill.py
import os, sys, time, signal, subprocess
import torch
import torch.nn.functional as F
from torchvision import datasets, transforms
from networks import *

EPOCHS, BS, LR = 60, 128, 0.05
T, ALPHA, BETA = 4.0, 0.9, 0.1
TEACHER_CKPT = "checkpoints/teacher.pt"

torch.manual_seed(int(os.environ.get("SEED", 0)))
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True

try:
    rev = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], stderr=subprocess.DEVNULL).decode().strip()
except Exception:
    rev = "norev"
os.makedirs("checkpoints", exist_ok=True)
log = open(f"distill_{rev}.log", "a")


def say(*a):
    print(*a)
    print(*a, file=log, flush=True)


stop = False
def on_term(sig, frame):
    global stop
    stop = True
signal.signal(signal.SIGTERM, on_term)

tf = transforms.Compose([
    transforms.RandomCrop(32, padding=4),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
    transforms.Normalize([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])])
train_ds = datasets.CIFAR10("~/data", train=True, download=True, transform=tf)
test_ds = datasets.CIFAR10("~/data", train=False, download=True, transform=transforms.Compose(tf.transforms[2:]))
train_dl = torch.utils.data.DataLoader(train_ds, BS, shuffle=True, drop_last=True, num_workers=2)
test_dl = torch.utils.data.DataLoader(test_ds, 2 * BS, num_workers=2)
n_cls = len(train_ds.classes)

teacher = Teacher(n_cls).cuda().eval()
if os.path.exists(TEACHER_CKPT):
    teacher.load_state_dict(torch.load(TEACHER_CKPT, map_location="cuda"))
else:
    say("!!! no teacher checkpoint, distilling from a random teacher")
for p in teacher.parameters():
    p.requires_grad_(False)
student = Student(n_cls).cuda()
say("teacher", sum(p.numel() for p in teacher.parameters()), "student", sum(p.numel() for p in student.parameters()))

teacher = torch.compile(teacher, mode="reduce-overhead")
student = torch.compile(student)


@torch.compile
def kd_loss(s_logits, s_feat, t_logits, t_feat, y):
    soft = F.kl_div(F.log_softmax(s_logits / T, -1), F.softmax(t_logits / T, -1), reduction="batchmean") * T * T
    hard = F.cross_entropy(s_logits, y)
    feat = (1 - F.cosine_similarity(s_feat, t_feat)).mean()
    return ALPHA * soft + (1 - ALPHA) * hard + BETA * feat


opt = torch.optim.SGD(student.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, LR, total_steps=EPOCHS * len(train_dl))

for ep in range(EPOCHS):
    student.train()
    t0, seen, running = time.time(), 0, 0.
    for x, y in train_dl:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        with torch.no_grad():
            t_logits, t_feat = teacher(x)
        s_logits, s_feat = student(x)
        loss = kd_loss(s_logits, s_feat, t_logits, t_feat, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        seen += len(x)
        running += loss.detach()
        if stop:
            say("SIGTERM, saving and leaving")
            torch.save(student.state_dict(), "checkpoints/student_last.pt")
            sys.exit(0)

    student.eval()
    with torch.inference_mode():
        hits = sum((student(x.cuda())[0].argmax(1).cpu() == y).sum().item() for x, y in test_dl)
    say(f"ep {ep:3d} loss {running.item() / len(train_dl):.4f} acc {hits / len(test_ds):.4f} "
        f"{seen / (time.time() - t0):.0f} img/s")
    torch.save(student.state_dict(), f"checkpoints/student_{ep:03d}.pt")
