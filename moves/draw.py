"""draw.py ROOT SEED: writes questions-SEED.md (names, then signatures) and answers-SEED.md, beside this file."""
import random,re,subprocess,sys
from pathlib import Path
root,seed=Path(sys.argv[1]),int(sys.argv[2])
out=Path(__file__).parent
files=subprocess.run(['git','-C',str(root),'ls-files'],capture_output=True,text=True).stdout.split()
def is_test(p):
    parts=p.split('/')
    return 'tests' in parts or p.endswith('tests.rs') or parts[0] in('examples',) or 'test_' in parts[-1] or 'benches' in parts or p.startswith('fuzz/')
src=[p for p in files if (p.endswith('.rs') or p.endswith('.py')) and not is_test(p)]
def rust(p):
    text=(root/p).read_text(); lines=text.split('\n'); res=[]; consts=[]
    impl=None; depth_impl=None
    intest=False
    for i,l in enumerate(lines):
        if re.match(r'#\[cfg\(test\)\]',l) and i+1<len(lines) and re.match(r'\s*mod \w+ \{',lines[i+1]): break
        m=re.match(r'(unsafe )?impl(<.*?>)? (.*?)\s*(\{|where|$)',l)
        if m:
            t=m.group(3); impl=re.sub(r'.* for ','',t); impl=re.sub(r'<.*','',impl).strip()
        if re.match(r'(pub(\([^)]*\))? )?trait (\w+)',l): impl=re.match(r'(pub(\([^)]*\))? )?trait (\w+)',l).group(3)
        if l=='}': impl=None
        m=re.match(r'(\s*)(pub(\([^)]*\))? )?(const )?(async )?(unsafe )?(extern "C" )?fn (\w+)',l)
        if m and len(m.group(1))<=4:
            # doc
            j=i-1; doc=[]
            while j>=0 and (lines[j].strip().startswith('///') or lines[j].strip().startswith('#[') or lines[j].strip().startswith('//')): doc.insert(0,lines[j].strip()); j-=1
            k=i; sig=[]
            while k<len(lines):
                sig.append(lines[k].strip())
                if lines[k].rstrip().endswith('{') or lines[k].rstrip().endswith(';') or ' }' in lines[k]: break
                k+=1
            if impl and m.group(1)=='' : pass
            name=(impl+'::' if impl and m.group(1) else '')+m.group(8)
            if m.group(8)=='fmt' or m.group(8)=='main': continue
            if any('#[test]' in d for d in doc): continue
            res.append((name,p,'\n'.join([d for d in doc if d.startswith('///')]),' '.join(sig)))
        m=re.match(r'\s*(pub(\([^)]*\))? )?const (\w+): ',l)
        if m and m.group(3).isupper() or (m and re.match(r'[A-Z_0-9]+$',m.group(3))):
            j=i-1; doc=[]
            while j>=0 and lines[j].strip().startswith('///'): doc.insert(0,lines[j].strip()); j-=1
            consts.append((l.strip(),p,'\n'.join(doc)))
    return res,consts
def py(p):
    import ast
    text=(root/p).read_text(); tree=ast.parse(text); res=[]
    def visit(n,pre):
        for c in ast.iter_child_nodes(n):
            if isinstance(c,ast.ClassDef): visit(c,c.name+'.')
            elif isinstance(c,(ast.FunctionDef,ast.AsyncFunctionDef)):
                if c.name.startswith('__'): continue
                sig=ast.unparse(ast.FunctionDef(c.name,c.args,[ast.Pass()],[],c.returns,lineno=1,type_params=[]))
                sig=sig.split('\n')[0]
                res.append((pre+c.name,p,ast.get_docstring(c) or '',sig))
    visit(tree,''); return res
fs=[];cs=[]
for p in src:
    if p.endswith('.rs'):
        a,b=rust(p); fs+=a; cs+=b
    else: fs+=py(p)
r=random.Random(seed)
# shuffle files, one function of each drawn file
by={}
for f in fs: by.setdefault(f[1],[]).append(f)
order=sorted(by); r.shuffle(order)
draw=[r.choice(by[p]) for p in order[:30]]
r.shuffle(cs); cd=cs[:10]
tree='\n'.join(src)
(out/f'tree-{seed}.txt').write_text(tree)
(out/f'names-{seed}.md').write_text('\n'.join(f'{i+1}. `{n}`' for i,(n,*_ ) in enumerate(draw)))
(out/f'signatures-{seed}.md').write_text('\n\n'.join(f'{i+1}.\n```\n{d}\n{s}\n```' for i,(n,p,d,s) in enumerate(draw))+'\n\n# Constants\n\n'+'\n\n'.join(f'{i+1}.\n```\n{d}\n{l}\n```' for i,(l,p,d) in enumerate(cd)))
(out/f'answers-{seed}.md').write_text('\n'.join(f'{i+1}. `{n}` {p}' for i,(n,p,*_ ) in enumerate(draw))+'\n\n'+'\n'.join(f'{l} {p}' for l,p,_ in cd))
print(len(fs),len(cs),len(src))
